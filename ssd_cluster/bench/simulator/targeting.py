"""A target replica in the model: rounds over a batch of sequences, lookups, the waiting rule, commits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ssd_cluster.bench.simulator.events import Timeline
from ssd_cluster.bench.simulator.laws import OutcomeLaw
from ssd_cluster.bench.simulator.messages import Block, Commit, Outcome
from ssd_cluster.bench.simulator.settings import SimulationSettings
from ssd_cluster.config import MissPolicy
from ssd_cluster.speculation.waiting import WaitEstimator, make_policy
from ssd_cluster.types import LookupResult, Mode

_VERIFY_RATE = 0.1
_WAIT_RATE = 0.1
_SUSPECT_AFTER = 2


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence of a batch.

    Attributes:
        n: tokens that are verified now or next; ``drafted``: they come from the draft, ``cached``: from its cache.
        round: newest commit; ``block``: newest answer to it that has arrived.
        late: rounds in a row whose block did not come.
    """

    id: int
    n: int = 0
    drafted: bool = False
    cached: bool = False
    round: int = 0
    block: Block | None = None
    late: int = 0

    def propose(self, n: int, *, drafted: bool, cached: bool = False) -> None:
        """This is verified next."""
        self.n, self.drafted, self.cached = n, drafted, cached


@dataclass(slots=True)
class Tally:
    """Counts of the measured rounds of one target. Seconds by phase add up to ``ended_s`` - ``began_s``."""

    began_s: float = 0.0
    ended_s: float = 0.0
    rounds: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    lookups: dict[LookupResult, int] = field(default_factory=lambda: dict.fromkeys(LookupResult, 0))
    verify_s: float = 0.0
    wait_s: float = 0.0
    overhead_s: float = 0.0


class SimulatedTarget:
    """Runs rounds until it has counted enough.

    Args:
        id: number of the target.
        timeline: virtual time.
        settings: of the simulation.
        sequences: ids of its sequences.
        laws: outcomes.
        send: called with the commits of a round, at the time when they leave.
        finished: called once, when the measured rounds are over; rounds go on.
    """

    def __init__(
        self,
        id: int,
        timeline: Timeline,
        settings: SimulationSettings,
        sequences: range,
        laws: OutcomeLaw,
        send: Callable[[list[Commit]], None],
        finished: Callable[[], None],
    ) -> None:
        self.tally = Tally()
        self._id = id
        self._timeline = timeline
        self._settings = settings
        self._sequences = {key: Sequence(key) for key in sequences}
        self._laws = laws
        self._send = send
        self._finished = finished
        self._rows = settings.rows if settings.mode is Mode.SSD else 0
        policy = MissPolicy.ALWAYS_WAIT if settings.mode is Mode.SD else settings.miss_policy
        self._estimator = WaitEstimator(make_policy(policy), settings.k)
        self._verify_mean: float | None = None
        self._rounds = 0
        self._mean_wait_s = math.inf
        self._waiting: dict[int, Sequence] = {}
        self._wait_began = 0.0
        self._ready_at = 0.0

    def start(self) -> None:
        """The first round begins: nothing is proposed, and the draft hears of every sequence."""
        if self._settings.mode is not Mode.AR:
            self._send([self._commit(sequence, None, 0) for sequence in self._sequences.values()])
        self._verify()

    def arrived(self, block: Block) -> None:
        """A block has come from the draft."""
        sequence = self._sequences[block.sequence]
        if block.round != sequence.round:
            return
        sequence.block = block
        if block.chain and sequence.id in self._waiting:
            del self._waiting[sequence.id]
            sequence.late = 0
            sequence.propose(block.chain, drafted=True)
            if self._rows:
                self._send([self._commit(sequence, None, sequence.n)])
            if not self._waiting:
                self._end_wait()

    def _verify(self) -> None:
        tokens = sum(sequence.n + 1 for sequence in self._sequences.values())
        seconds = self._settings.verify_ms.seconds(tokens)
        if self._counts:
            self.tally.verify_s += seconds
        self._timeline.at(self._timeline.now + seconds, lambda: self._verified(seconds))

    @property
    def _counts(self) -> bool:
        return self._settings.warm_up <= self._rounds < self._settings.warm_up + self._settings.rounds

    def _verified(self, seconds: float) -> None:
        """A forward has ended: outcomes, lookups, the waiting rule, commits."""
        mean = self._verify_mean
        self._verify_mean = seconds if mean is None else mean + _VERIFY_RATE * (seconds - mean)
        self._estimator.observe_verify(seconds)
        outcomes = {sequence: self._outcome(sequence) for sequence in self._sequences.values()}
        overhead = self._settings.overhead_ms / 1e3
        self._ready_at = self._timeline.now + overhead
        if self._counts:
            self.tally.overhead_s += overhead
        if self._settings.mode is not Mode.AR:
            self._decide(outcomes)
        if not self._waiting:
            self._timeline.at(self._ready_at, self._next_round)

    def _outcome(self, sequence: Sequence) -> Outcome:
        n, drafted = sequence.n, sequence.drafted
        kept = self._laws.kept(n, drafted) if n else 0
        self._estimator.observe_row(drafted=drafted, tokens=kept + 1)
        if self._counts:
            self.tally.tokens += kept + 1
            self.tally.proposed += n
            self.tally.accepted += kept
        return Outcome(n, kept, self._laws.rank(kept == n, sequence.cached))

    def _decide(self, outcomes: dict[Sequence, Outcome]) -> None:
        missing = [sequence for sequence, outcome in outcomes.items() if not self._look_up(sequence, outcome)]
        able = [sequence for sequence in missing if sequence.late < _SUSPECT_AFTER]
        waits = bool(able) and (self._settings.mode is Mode.SD or self._estimator.should_wait(len(outcomes), len(able)))
        commits = []
        for sequence, outcome in outcomes.items():
            wait = waits and sequence in able
            if sequence in missing and not wait:
                self._fall_back(sequence)
            commits.append(self._commit(sequence, outcome, None if wait else sequence.n))
            if wait:
                self._waiting[sequence.id] = sequence
        self._send(commits)
        if self._waiting:
            self._wait_began, waited = self._timeline.now, self._rounds
            self._timeline.at(self._timeline.now + self._settings.wait_ms / 1e3, lambda: self._give_up(waited))

    def _look_up(self, sequence: Sequence, outcome: Outcome) -> bool:
        """True if the next proposal of a sequence is there."""
        if not self._rows:
            return False
        result, n = LookupResult.LATE, 0
        if sequence.block is not None:
            result, n = sequence.block.look_up(outcome, self._settings.k)
            sequence.late = 0
        else:
            sequence.late += 1
        hit = result is LookupResult.HIT
        self._estimator.observe_lookup(hit=hit)
        if self._counts:
            self.tally.lookups[result] += 1
        if hit:
            sequence.propose(n, drafted=True, cached=True)
        return hit

    def _fall_back(self, sequence: Sequence) -> None:
        sequence.propose(self._settings.fallback_tokens, drafted=False)

    def _commit(self, sequence: Sequence, outcome: Outcome | None, n: int | None) -> Commit:
        sequence.round += 1
        sequence.block = None
        due = max(0.0, (self._verify_mean or 0.0) - 2 * self._settings.one_way_ms / 1e3)
        deadline = self._settings.wait_ms / 1e3
        pull = min(deadline / 2, 2 * self._mean_wait_s)
        k, rows = self._settings.k, self._rows
        if n is None and self._settings.chain_k is not None:
            k = min(k, self._settings.chain_k)
        return Commit(sequence.id, self._id, sequence.round, outcome, n, k, rows, due, pull, deadline)

    def _give_up(self, waited: int) -> None:
        """The deadline of a wait has passed."""
        if waited != self._rounds or not self._waiting:
            return
        for sequence in self._waiting.values():
            sequence.late += 1
            self._fall_back(sequence)
        if self._rows:
            self._send([self._commit(sequence, None, sequence.n) for sequence in self._waiting.values()])
        self._waiting.clear()
        self._end_wait()

    def _end_wait(self) -> None:
        now = self._timeline.now
        waited = now - self._wait_began
        self._estimator.observe_wait(waited)
        first = math.isinf(self._mean_wait_s)
        self._mean_wait_s = waited if first else self._mean_wait_s + _WAIT_RATE * (waited - self._mean_wait_s)
        if self._counts:
            self.tally.wait_s += max(0.0, now - self._ready_at)
        self._timeline.at(max(now, self._ready_at), self._next_round)

    def _next_round(self) -> None:
        self._rounds += 1
        measured = self._rounds - self._settings.warm_up
        if measured == 0:
            self.tally.began_s = self._timeline.now
        if measured == self._settings.rounds:
            self.tally.rounds = measured
            self.tally.ended_s = self._timeline.now
            self._finished()
        self._verify()
