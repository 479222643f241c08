"""Work in progress for one round of one session: a tree of pre-drafted outcomes, or one just-in-time chain.

Symbols as in speculation.md: B committed length, x_1..x_n the proposal being verified, k kept tokens, t* the token
after them, K drafted tokens per branch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ssd_cluster.draft.laws import LawRow, drafted_prefix
from ssd_cluster.link.messages import Branch
from ssd_cluster.types import fingerprint


@dataclass(slots=True, eq=False)
class BranchBuild:
    """One guessed outcome (k, t*) and the tokens drafted behind it so far.

    Attributes:
        k: kept length of the outcome.
        t_star: guessed next token.
        log_p: estimated log-probability of the outcome.
        limit: most tokens to draft.
        tail: slot of its keys and values; None once nothing is left to run.
        tokens: drafted tokens.
        laws: in ratio mode the law of each of them.
        fed: tokens run so far, t* included.
    """

    k: int
    t_star: int
    log_p: float
    limit: int
    tail: int | None = None
    tokens: list[int] = field(default_factory=list)
    laws: list[LawRow] = field(default_factory=list)
    fed: int = 0

    @property
    def next_input(self) -> int:
        """The token to run next, at tail entry ``fed``."""
        return self.t_star if self.fed == 0 else self.tokens[self.fed - 1]


@dataclass(slots=True, eq=False)
class TreeBuild:
    """The tree of one session for one round.

    Attributes:
        base_len: B.
        proposal: x_1..x_n, all of them; the block's fingerprint is over these.
        k: K.
        rows: most branches.
        due_s: clock time at which the block is wanted.
        seed: (k, t*, tokens) known before anything was run, from work of the round before.
        ratio_round: in ratio mode the round word of this tree's draws; None otherwise. Such a tree is drafted on behind
            a stop id, unseen by the target: were it complete earlier because of the tokens it drew, blocks that come in
            time would hold other tokens than the law says.
        survival: entry j: expected share of branches whose j-th drafted token will be kept, given that the outcome was
            right (decides breadth against depth only).
        guesses: per kept length the candidates for t*, best first; set when the glue rows have run.
        branches: what is built, best first within one kept length; None until the glue rows have run.
        size: drafted tokens so far.
        passed_over: rows of this tree once had to wait because the step was full.
        pushed: drafted tokens in the newest pushed block; None if none was pushed.
    """

    base_len: int
    proposal: tuple[int, ...]
    k: int
    rows: int
    due_s: float
    stop_ids: Collection[int]
    seed: tuple[int, int, tuple[int, ...]] | None = None
    ratio_round: int | None = None
    survival: Sequence[float] = ()
    guesses: list[list[int]] = field(default_factory=list)
    branches: list[BranchBuild] | None = None
    live: list[BranchBuild] = field(default_factory=list)
    size: int = 0
    passed_over: bool = False
    pushed: int | None = None

    @property
    def fingerprint(self) -> int:
        return fingerprint(self.base_len, self.proposal)

    @property
    def done(self) -> bool:
        """Nothing is left to run."""
        return self.branches is not None and not self.live

    def start(self, branches: list[BranchBuild]) -> None:
        """Set the planned branches; those with room to draft become runnable."""
        self.branches = branches
        for branch in branches:
            if self.seed is not None and self.seed[:2] == (branch.k, branch.t_star):
                branch.tokens = list(self.seed[2][: branch.limit])
                self.size += len(branch.tokens)
            if not self._complete(branch):
                self.live.append(branch)

    def best(self, rows: int) -> list[BranchBuild]:
        """The runnable branches of highest gain, at most ``rows``: P(outcome) times expected extra tokens."""
        if rows >= len(self.live):
            return list(self.live)
        self.passed_over = True
        return sorted(self.live, key=self._gain, reverse=True)[:rows]

    def grow(self, branch: BranchBuild, drawn: int, law: LawRow | None = None) -> bool:
        """The row that ``best`` gave out has run and drew a token; True if the branch is complete now."""
        branch.fed += 1
        if branch.fed > len(branch.tokens):
            branch.tokens.append(drawn)
            self.size += 1
            if law is not None:
                branch.laws.append(law)
        if self._complete(branch):
            self.live.remove(branch)
            return True
        return False

    def block(self) -> tuple[Branch, ...]:
        """What exists now. A branch without tokens tells the target that its outcome was guessed."""
        branches = self.branches or ()
        return tuple(Branch(b.k, b.t_star, drafted_prefix(b.tokens, self.stop_ids), b.log_p) for b in branches)

    def drafted(self, index: int) -> tuple[list[int], list[LawRow]]:
        """Tokens and laws behind branch ``index`` of the block; none if there is no such branch."""
        branches = self.branches or ()
        return (branches[index].tokens, branches[index].laws) if 0 <= index < len(branches) else ([], [])

    def _complete(self, branch: BranchBuild) -> bool:
        tokens = branch.tokens
        if len(tokens) >= branch.limit:
            return True
        return self.ratio_round is None and bool(tokens and tokens[-1] in self.stop_ids)

    def _gain(self, branch: BranchBuild) -> float:
        depth = max(branch.fed, len(branch.tokens))
        weight = self.survival[min(depth, len(self.survival) - 1)] if self.survival else 1.0
        return math.exp(branch.log_p) * weight


@dataclass(slots=True, eq=False)
class ChainBuild:
    """A just-in-time chain: the draft's own continuation of the committed text.

    Attributes:
        base_len: B.
        limit: tokens wanted.
        deadline_s: clock time after which the target goes on without it.
        tokens: what exists; it may start with tokens of the round before.
        laws: in ratio mode the law of each of them.
        ratio_round: as for a tree.
        glued: the committed text and the tokens before the last one are in the pages.
        pushed: whether the chain was sent; nothing follows after that.
    """

    base_len: int
    limit: int
    deadline_s: float
    stop_ids: Collection[int]
    tokens: list[int] = field(default_factory=list)
    laws: list[LawRow] = field(default_factory=list)
    ratio_round: int | None = None
    glued: bool = False
    pushed: bool = False
    passed_over: bool = False

    def extend(self, tokens: Sequence[int], laws: Sequence[LawRow | None] = ()) -> None:
        """Append drawn tokens, and their laws in ratio mode, up to the limit or a stop id."""
        for index, token in enumerate(tokens):
            if self.done:
                return
            self.tokens.append(token)
            law = laws[index] if laws else None
            if law is not None:
                self.laws.append(law)

    @property
    def done(self) -> bool:
        """Nothing is left to draw."""
        tokens = self.tokens
        if self.pushed or len(tokens) >= self.limit:
            return True
        return self.ratio_round is None and bool(tokens and tokens[-1] in self.stop_ids)

    @property
    def fingerprint(self) -> int:
        return fingerprint(self.base_len, ())

    def block(self) -> tuple[Branch, ...]:
        """The chain as one flagged branch; its first drawn token stands as t*."""
        first, *rest = drafted_prefix(self.tokens, self.stop_ids)
        return (Branch(0, first, tuple(rest), 0.0, jit=True),)

    def drafted(self, index: int) -> tuple[list[int], list[LawRow]]:
        """Tokens and laws of the chain, t* first; ``index`` is 0, the only branch."""
        return (self.tokens, self.laws) if index == 0 else ([], [])


Build = TreeBuild | ChainBuild
