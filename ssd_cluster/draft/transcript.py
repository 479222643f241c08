"""The committed text of one session and the rules by which commits change it (protocol.md, rules 3 to 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_cluster.link.messages import CommitRow, NackCode, Next


@dataclass(frozen=True, slots=True)
class Round:
    """What the target does after the committed text: the version of the session that work is built for.

    Attributes:
        next: nothing, a wait for a just-in-time chain, or the tokens being verified.
        proposal: those tokens; empty unless ``next`` is TOKENS.
        k: ceiling of drafted tokens per branch.
        rows: ceiling of branches; 0 asks for no block.
        due_s: clock time at which the block must leave; the receipt itself where the target does not say.
        deadline_s: clock time after which a waiting target goes on without the chain; infinite where it does not say.
        shard, shards: of the kept lengths, those that are to be guessed here (``shard_of``).
    """

    next: Next
    proposal: tuple[int, ...]
    k: int
    rows: int
    due_s: float
    deadline_s: float
    shard: int = 0
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the verification of ``proposal`` at committed length ``base_len`` ended: k tokens kept, then ``t_star``."""

    base_len: int
    proposal: tuple[int, ...]
    k: int
    t_star: int


@dataclass(frozen=True, slots=True)
class Applied:
    """Effect of one commit row.

    Attributes:
        renewed: there is a new round; work for the old one is superseded.
        finished: the session ends.
        nack: the row cannot be applied; for GAP the session goes on, otherwise it is lost.
        dropped: reason why the row changed nothing, for the counter of dropped messages.
        outcome: how the verification in flight ended, where the row tells it.
    """

    renewed: bool = False
    finished: bool = False
    nack: NackCode | None = None
    dropped: str | None = None
    outcome: Outcome | None = None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


@dataclass(slots=True)
class Transcript:
    """Committed tokens of a session and its current round.

    Attributes:
        tokens: prompt and output committed so far; append-only.
        round: what the target does now.
        counter: counter of the row that set ``round``.
    """

    tokens: list[int]
    round: Round
    counter: int = -1

    @property
    def base_len(self) -> int:
        return len(self.tokens)

    def commit(self, row: CommitRow, now: float, k_max: int, vocabulary: int) -> Applied:
        """Apply one row: equal overlap is ignored, a tail is appended, the newest ``next`` for a length wins.

        Args:
            row: a row of this session and epoch.
            now: clock time of its receipt, seconds.
            k_max: cap of drafted tokens.
            vocabulary: number of valid ids.
        """
        have = len(self.tokens)
        if row.from_len < 0 or row.from_len > have:
            return Applied(nack=NackCode.GAP)
        overlap = min(have - row.from_len, len(row.tokens))
        if tuple(self.tokens[row.from_len : row.from_len + overlap]) != row.tokens[:overlap]:
            return Applied(nack=NackCode.CONFLICT)
        tail = row.tokens[overlap:]
        if not _valid(tail, vocabulary) or not _valid(row.proposal, vocabulary):
            return Applied(nack=NackCode.BAD_TOKEN)
        if row.finish:
            self.tokens.extend(tail)
            return Applied(finished=True)
        if not tail and (row.base_len < have or row.counter <= self.counter):
            return Applied(dropped="replay")
        outcome = self._outcome(tail)
        self.tokens.extend(tail)
        self.counter = row.counter
        self.round = _round(row, now, k_max)
        return Applied(renewed=True, outcome=outcome)

    def _outcome(self, tail: tuple[int, ...]) -> Outcome | None:
        """Whether the new tokens are exactly the result of verifying the proposal in flight."""
        if not tail or self.round.next is Next.WAIT:
            return None
        k = len(tail) - 1
        proposal = self.round.proposal
        return Outcome(self.base_len, proposal, k, tail[k]) if proposal[:k] == tail[:k] else None


def _valid(tokens: Sequence[int], vocabulary: int) -> bool:
    return not tokens or (min(tokens) >= 0 and max(tokens) < vocabulary)


def _round(row: CommitRow, now: float, k_max: int) -> Round:
    return Round(
        next=row.next,
        proposal=row.proposal if row.next is Next.TOKENS else (),
        k=max(0, min(row.k, k_max)),
        rows=max(0, row.rows),
        due_s=now + row.due_us * 1e-6,
        deadline_s=now + row.deadline_us * 1e-6 if row.deadline_us > 0 else float("inf"),
        shard=row.shard,
        shards=row.shards,
    )
