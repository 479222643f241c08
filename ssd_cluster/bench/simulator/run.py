"""Runs one simulation and sums it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from ssd_cluster.bench.simulator.drafting import SimulatedDraft
from ssd_cluster.bench.simulator.events import Timeline
from ssd_cluster.bench.simulator.laws import OutcomeLaw, PowerLaws
from ssd_cluster.bench.simulator.messages import Block, Commit
from ssd_cluster.bench.simulator.settings import SimulationSettings
from ssd_cluster.bench.simulator.targeting import SimulatedTarget
from ssd_cluster.bench.simulator.times import COMMIT_BYTES, LinkTime, block_bytes
from ssd_cluster.types import LookupResult, Mode

Laws = Callable[[SimulationSettings, int], OutcomeLaw]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a deployment does in its steady state.

    Attributes:
        tokens_per_s: of all sequences; ``per_sequence``: the mean of one.
        tokens_per_round: of one sequence, t* included.
        acceptance: share of the proposed tokens that were kept; None if nothing was proposed.
        hit_rate, late_rate: share of lookups that hit, and that found no block, or nothing drafted, for their outcome;
            None without lookups.
        draft_utilisation: share of the time in which a draft computes, mean over drafts; None without drafts. In mode
            ``sd`` every target drafts for itself.
        rows_per_step: mean rows of a draft's forward.
        round_ms: mean round of a target, and its parts ``verify_ms``, ``wait_ms``, ``overhead_ms``.
        link_bytes_per_s: both directions, all pairs.
    """

    mode: Mode
    tokens_per_s: float
    per_sequence: float
    tokens_per_round: float
    acceptance: float | None
    hit_rate: float | None
    late_rate: float | None
    draft_utilisation: float | None
    rows_per_step: float | None
    round_ms: float
    verify_ms: float
    wait_ms: float
    overhead_ms: float
    link_bytes_per_s: float

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"mode": self.mode.value}


def simulate(settings: SimulationSettings, laws: Laws = PowerLaws) -> SimulationResult:
    """Run every target for its warm-up and its measured rounds.

    Args:
        settings: of the deployment.
        laws: makes the outcome law of one target from the settings and a seed.
    """
    return _Simulation(settings, laws).run()


class _Simulation:
    """Targets and drafts on one timeline; sequence s lives on draft s mod N, in mode ``sd`` on its target's own."""

    def __init__(self, settings: SimulationSettings, laws: Laws) -> None:
        self._settings = settings
        self._timeline = Timeline()
        own = settings.mode is Mode.SD
        self._link = LinkTime() if own else LinkTime(one_way_ms=settings.one_way_ms, mbit_s=settings.mbit_s)
        self._n_drafts = {Mode.AR: 0, Mode.SD: settings.targets}.get(settings.mode, settings.drafts)
        self.bytes = 0
        self._running = settings.targets
        seeds = np.random.SeedSequence(settings.seed)
        rng = np.random.default_rng(seeds.spawn(1)[0])
        self._offsets = rng.random(settings.targets).tolist()
        target_seeds = seeds.generate_state(settings.targets, np.uint64).tolist()
        self._drafts = [SimulatedDraft(self._timeline, settings, self._push) for _ in range(self._n_drafts)]
        batch = settings.batch
        self._targets = [
            SimulatedTarget(
                index,
                self._timeline,
                settings,
                range(index * batch, (index + 1) * batch),
                laws(settings, int(target_seeds[index])),
                self._send,
                self._finished,
            )
            for index in range(settings.targets)
        ]

    def run(self) -> SimulationResult:
        first = self._settings.verify_ms.seconds(self._settings.batch)
        for target, offset in zip(self._targets, self._offsets, strict=True):
            self._timeline.at(offset * first, target.start)
        self._timeline.run()
        return self._result()

    def _draft_of(self, sequence: int) -> int:
        return sequence // self._settings.batch if self._settings.mode is Mode.SD else sequence % self._n_drafts

    def _send(self, commits: list[Commit]) -> None:
        """Commits leave a target, one frame per draft."""
        frames: dict[int, list[Commit]] = {}
        for commit in commits:
            frames.setdefault(self._draft_of(commit.sequence), []).append(commit)
        for draft, rows in frames.items():
            size = COMMIT_BYTES * len(rows)
            self.bytes += size
            arrival = self._timeline.now + self._link.seconds(size)
            self._timeline.at(arrival, lambda d=draft, r=rows: self._drafts[d].receive(r))  # type: ignore[misc]

    def _push(self, block: Block) -> None:
        """A block leaves a draft."""
        size = block_bytes(*block.size)
        self.bytes += size
        target = self._targets[block.sequence // self._settings.batch]
        self._timeline.at(self._timeline.now + self._link.seconds(size), lambda: target.arrived(block))

    def _finished(self) -> None:
        self._running -= 1
        self._timeline.stopped = self._running == 0

    def _result(self) -> SimulationResult:
        tallies, sequences = [target.tally for target in self._targets], self._settings.targets * self._settings.batch
        rounds = sum(t.rounds for t in tallies)
        spans = [t.ended_s - t.began_s for t in tallies]
        speed = sum(t.tokens / span for t, span in zip(tallies, spans, strict=True))
        proposed = sum(t.proposed for t in tallies)
        counts = {result: sum(t.lookups[result] for t in tallies) for result in LookupResult}
        lookups = sum(counts.values())
        steps = sum(draft.steps for draft in self._drafts)
        elapsed, busy = self._timeline.now, sum(draft.busy_s for draft in self._drafts)
        return SimulationResult(
            mode=self._settings.mode,
            tokens_per_s=speed,
            per_sequence=speed / sequences,
            tokens_per_round=sum(t.tokens for t in tallies) / (rounds * self._settings.batch),
            acceptance=sum(t.accepted for t in tallies) / proposed if proposed else None,
            hit_rate=counts[LookupResult.HIT] / lookups if lookups else None,
            late_rate=counts[LookupResult.LATE] / lookups if lookups else None,
            draft_utilisation=busy / (elapsed * self._n_drafts) if self._drafts else None,
            rows_per_step=sum(d.rows_run for d in self._drafts) / steps if steps else None,
            round_ms=1e3 * sum(spans) / rounds,
            verify_ms=1e3 * sum(t.verify_s for t in tallies) / rounds,
            wait_ms=1e3 * sum(t.wait_s for t in tallies) / rounds,
            overhead_ms=1e3 * sum(t.overhead_s for t in tallies) / rounds,
            link_bytes_per_s=self.bytes / elapsed if elapsed else 0.0,
        )
