"""The speculation cache of one sequence: a token trie below the committed text (speculation.md section 2).

The root stands for all committed tokens. Every guessed outcome and the tokens drafted behind it hang below it as a
path, so one walk answers partial depth, blocks that are a round late, several proposers and roll-back (re-rooting).

A node's score is the estimated log-probability that its token follows its parent: 0 for kept and for drafted tokens
(the draft's first choice there), the branch's score for a guessed t*. The chain of best scores below the root is the
next proposal. Under the equality rule any tokens may be proposed, so chains of kinds ``coupled`` and ``delta`` may be
joined (the whole is ``delta`` unless all of it is ``coupled``). A walk selects by tokens, so whatever else hangs here
is ``delta`` too; what may be verified by a ratio rule is kept apart (``chains``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ssd_cluster.types import BlockOrigin, Proposal, ProposalKind

_HISTORY_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that may be proposed after the committed text.

    Attributes:
        tokens: at least one token id.
        kind: how they may be verified.
        source: proposer of the first token.
        score: sum of the log-probabilities of the guesses in the chain; 0 when it stands behind a committed t*.
        origin: where the first token stood in a pushed block; the tokens follow that branch as far as it goes. None for
            a guessed t* and for tokens that came from no block.
    """

    tokens: tuple[int, ...]
    kind: ProposalKind
    source: str
    score: float
    origin: BlockOrigin | None

    def proposal(self, base_len: int) -> Proposal:
        """These tokens as the proposal that follows ``base_len`` committed tokens."""
        return Proposal(base_len, self.tokens, self.kind, self.source, self.origin)


@dataclass(frozen=True, slots=True)
class Walk:
    """How far the trie knew the tokens of one ``advance``.

    ``found``: all of them were there. ``rank``: position of the last one (t*) among the guesses of its block for its
    kept length, 0 first; None if it was not found or was there as a drafted token only.
    """

    found: bool
    rank: int | None


class _Node:
    """``owner``: (block_seq, branch) of the newest branch; ``offset``: index in its tokens, -1 for t*. ``age`` and
    ``worth`` (base_len and score of the newest and best branch through here) only decide what is evicted."""

    __slots__ = ("age", "children", "kind", "offset", "owner", "rank", "score", "source", "worth")

    def __init__(self, score: float, age: int, worth: float, source: str, kind: ProposalKind) -> None:
        self.children: dict[int, _Node] = {}
        self.score = score
        self.age = age
        self.worth = worth
        self.source = source
        self.kind = kind
        self.rank: int | None = None
        self.owner: tuple[int, int] | None = None
        self.offset = 0


class TokenTrie:
    """Guessed futures of one sequence, rooted at its committed length.

    Args:
        base_len: committed tokens (prompt + output).
        max_nodes: node budget, kept by ``trim``.
    """

    def __init__(self, base_len: int, max_nodes: int = 400) -> None:
        self.base_len = base_len
        self._max_nodes = max_nodes
        self._root = _bare_root()
        self._history: list[int] = []
        self._size: int | None = 0

    def __len__(self) -> int:
        """Nodes below the root."""
        if self._size is None:
            self._size = sum(1 for _ in self._below_root())
        return self._size

    def insert(
        self,
        base_len: int,
        kept: Sequence[int],
        t_star: int,
        tokens: Sequence[int],
        *,
        score: float,
        rank: int,
        source: str,
        kind: ProposalKind,
        origin: BlockOrigin | None = None,
    ) -> bool:
        """Hang one branch below the committed text.

        Args:
            base_len: committed length the branch was built on; an older one is fine while the branch agrees with what
                was committed since.
            kept: proposed tokens x_1..x_k that the guessed outcome keeps.
            t_star: guessed next token.
            tokens: tokens drafted behind it, possibly none.
            score: estimated log-probability of the outcome.
            rank: position of t* among its block's guesses for this k, best first.
            source: name of the proposer.
            kind: how ``tokens`` were drawn.
            origin: the block and the branch in it; its offset is ignored.

        Returns:
            False if nothing was added because the branch is stale: it contradicts the committed text, lies behind it,
            or was built on a length that is unknown here.
        """
        path = (*kept, t_star, *tokens)
        done, star = self.base_len - base_len, len(kept)
        if not 0 <= done < len(path) or done > len(self._history):
            return False
        if done and path[:done] != tuple(self._history[-done:]):
            return False
        owner = (origin.block_seq, origin.branch) if origin is not None else None
        size, node = len(self), self._root
        for index in range(done, len(path)):
            token, own = path[index], score if index == star else 0.0
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node(own, base_len, score, source, kind)
                size += 1
            else:
                child.score = max(child.score, own)
                child.age = max(child.age, base_len)
                child.worth = max(child.worth, score)
            if index >= star:
                child.source, child.kind, child.owner, child.offset = source, kind, owner, index - star - 1
                if index == star:
                    child.rank = rank
            node = child
        self._size = size
        return True

    def advance(self, tokens: Sequence[int]) -> Walk:
        """Commit tokens: re-root below them and drop everything that contradicts them."""
        if not tokens:
            return Walk(True, None)
        node: _Node | None = self._root
        for token in tokens:
            node = node.children.get(token) if node is not None else None
        self.base_len += len(tokens)
        self._history.extend(tokens)
        del self._history[:-_HISTORY_TOKENS]
        self._root = node if node is not None else _bare_root()
        self._size = None
        return Walk(node is not None, node.rank if node is not None else None)

    def lookup(self, k: int) -> Continuation | None:
        """The best chain of at most ``k`` tokens that follows the committed text; None if there is none."""
        if k <= 0 or not self._root.children:
            return None
        chain = self._best_chain(k)
        coupled = all(node.kind is ProposalKind.COUPLED for _, node in chain)
        kind = ProposalKind.COUPLED if coupled else ProposalKind.DELTA
        first = chain[0][1]
        drafted = first.owner is not None and first.offset >= 0
        return Continuation(
            tuple(token for token, _ in chain),
            kind,
            first.source,
            sum(node.score for _, node in chain),
            BlockOrigin(*first.owner, first.offset) if first.owner is not None and drafted else None,
        )

    def _best_chain(self, k: int) -> list[tuple[int, _Node]]:
        chain: list[tuple[int, _Node]] = []
        node = self._root
        while len(chain) < k and node.children:
            token, node = max(node.children.items(), key=_preference)
            chain.append((token, node))
        return chain

    def trim(self) -> None:
        """Drop leaves until the node budget holds: those of the oldest branches first, then those of the lowest score.

        To be called once per block, since it looks at every node.
        """
        if len(self) <= self._max_nodes:
            return
        above = {parent.children[token]: (parent, token) for parent, token in self._below_root()}
        leaves = [(node.age, node.worth, order, node) for order, node in enumerate(above) if not node.children]
        heapq.heapify(leaves)
        for order in range(len(above), len(above) + len(self) - self._max_nodes):
            parent, token = above[heapq.heappop(leaves)[3]]
            del parent.children[token]
            if not parent.children and parent is not self._root:
                heapq.heappush(leaves, (parent.age, parent.worth, order, parent))
        self._size = self._max_nodes

    def _below_root(self) -> Iterator[tuple[_Node, int]]:
        """Every (parent, token), parents before children."""
        stack = [self._root]
        while stack:
            parent = stack.pop()
            for token, child in parent.children.items():
                yield parent, token
                stack.append(child)


def _bare_root() -> _Node:
    return _Node(0.0, 0, 0.0, "none", ProposalKind.NONE)


def _preference(item: tuple[int, _Node]) -> tuple[float, int]:
    return item[1].score, item[1].age
