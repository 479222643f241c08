"""The targets of one measurement, in this process: real engines on replaying runners, each with a stream of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ssd_cluster.bench.pool.clients import Client, behave
from ssd_cluster.bench.pool.feed import Counts, Feed
from ssd_cluster.bench.pool.outcomes import Outcomes
from ssd_cluster.bench.pool.replay import Recall, ReplayRunner
from ssd_cluster.bench.simulator.times import StepTime
from ssd_cluster.config import LinkSettings, MissPolicy, ModelSettings, SpeculationSettings, TargetSettings
from ssd_cluster.errors import EngineStopped, StartupError
from ssd_cluster.link.faults import FaultPlan, ThreadTimer
from ssd_cluster.link.faulty import faulty_connector
from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.replica import Connector
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import LookupResult, Mode

_READY_S = 30.0
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """One target: how it decodes, how many sequences, how it uses the link.

    ``mode`` ``ssd`` without ``linked`` has its local fallback only. ``one_way_ms`` is added to each message.
    ``shards``: drafts that share its guesses. ``rows``: guesses per round at each of them, None: as in the world's
    settings.
    """

    name: str
    batch: int
    mode: Mode = Mode.SSD
    client: Client = Client.PUSH
    one_way_ms: float = 0.0
    linked: bool = True
    shards: int = 1
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class World:
    """What all targets of a run share.

    Attributes:
        outcomes: what is replayed.
        config: shape of the recorded model.
        tokenizer: of that model.
        model: KV capacity is set per target; cores are those of all targets.
        speculation: of all of them.
        verify: T_v by tokens of a forward.
    """

    outcomes: Outcomes
    config: DecoderConfig
    tokenizer: Tokenizer
    model: ModelSettings
    speculation: SpeculationSettings
    verify: StepTime


@dataclass(frozen=True, slots=True)
class Observed:
    """One target in the window of a measurement.

    Attributes:
        plan: which target.
        counts: of its sequences.
        lookups: by result.
        seconds: length of the window.
        round_ms: mean decoding round of the engine, and what of it was no forward (nor a wait for the draft).
    """

    plan: Plan
    counts: Counts
    lookups: dict[str, int]
    seconds: float
    round_ms: float
    overhead_ms: float


class Crowd:
    """Started targets under load; close it, or use it in ``with``.

    Raises:
        StartupError: a target found no draft in time.
    """

    def __init__(self, world: World, plans: Sequence[Plan], endpoints: Sequence[str], loop: LinkLoop) -> None:
        self._plans = list(plans)
        self._stack = ExitStack()
        self._feeds: list[Feed] = []
        try:
            timer = ThreadTimer() if any(plan.one_way_ms for plan in plans) else None
            if timer is not None:
                self._stack.callback(timer.close)
            recall = Recall(world.outcomes.texts)
            first, stride = 0, sum(plan.batch for plan in plans)
            for plan in plans:
                engine = self._engine(world, plan, recall, _connectors(plan, endpoints, loop, timer))
                self._feeds.append(
                    Feed(engine, plan.name, world.outcomes, plan.batch, first=first, stride=stride),
                )
                first += plan.batch
            self._await_drafts()
        except BaseException:
            self._stack.close()
            raise

    def _engine(self, world: World, plan: Plan, recall: Recall, connectors: list[Connector]) -> TargetEngine:
        longest = max(len(text.prompt) + len(text.output) for text in world.outcomes.texts)
        size = world.model.block_size
        tokens = (plan.batch + 1) * (-(-longest // size) + 1) * size
        settings = target_settings(world, plan, tokens)
        runner = ReplayRunner(settings.model, world.config, recall, world.verify)
        # The same name at every start: the draft then goes on with what it has learned of this target.
        rng = random.Random(plan.name)
        engine = TargetEngine(runner, world.tokenizer, settings, connectors, rng=rng)
        self._stack.callback(engine.stop)
        engine.start()
        return engine

    def _await_drafts(self) -> None:
        deadline = time.monotonic() + _READY_S
        for feed in self._feeds:
            if not feed.engine.wait_for_draft(max(0.0, deadline - time.monotonic())):
                raise StartupError(f"target {feed.name} has no draft after {_READY_S:g} s; the log says why")

    def start(self) -> None:
        """Submit the first requests."""
        for feed in self._feeds:
            feed.start()

    def run(self, seconds: float) -> None:
        """Let the targets work for so long.

        Raises:
            EngineStopped: one of them has failed.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            for feed in self._feeds:
                if feed.failure is not None or not feed.engine.healthy():
                    raise EngineStopped(f"target {feed.name} has failed: {feed.failure or 'its engine stopped'}")

    def measure(self, seconds: float, around: Callable[[], Any]) -> tuple[list[Observed], Any, Any]:
        """Count for so long: (targets, ``around()`` at the start, ``around()`` at the end)."""
        before = around()
        began = time.monotonic()
        marks = [self._mark(feed) for feed in self._feeds]
        self.run(seconds)
        ended = time.monotonic()
        observed = [
            self._observe(plan, feed, mark, ended - began)
            for plan, feed, mark in zip(self._plans, self._feeds, marks, strict=True)
        ]
        return observed, before, around()

    @staticmethod
    def _mark(feed: Feed) -> dict[str, int]:
        feed.take()
        feed.engine.times.reset()
        return _lookups(feed.engine)

    @staticmethod
    def _observe(plan: Plan, feed: Feed, before: dict[str, int], seconds: float) -> Observed:
        counts, times = feed.take(), feed.engine.times
        spent = dict(times.seconds)
        rounds = max(1, times.rounds)
        overhead = sum(spent.values()) - spent["forward"] - spent["draft_wait"]
        lookups = {name: count - before[name] for name, count in _lookups(feed.engine).items()}
        total_ms = 1e3 * sum(spent.values()) / rounds
        return Observed(plan, counts, lookups, seconds, total_ms, 1e3 * overhead / rounds)

    def close(self) -> None:
        """Stop all targets."""
        for feed in self._feeds:
            feed.close()
        self._stack.close()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def target_settings(world: World, plan: Plan, kv_tokens: int) -> TargetSettings:
    """Settings of one target; a pulling one waits for its block after every round, since none is pushed to it."""
    speculation = world.speculation
    rows = speculation.rows if plan.rows is None else plan.rows
    speculation = speculation.model_copy(update={"shards": plan.shards, "rows": rows})
    if plan.client is Client.PULL:
        speculation = speculation.model_copy(update={"miss_policy": MissPolicy.ALWAYS_WAIT})
    return TargetSettings(
        model=world.model.model_copy(update={"kv_tokens": kv_tokens}),
        served_name=plan.name,
        mode=plan.mode,
        max_batch=plan.batch,
        speculation=speculation,
    )


def _connectors(plan: Plan, endpoints: Sequence[str], loop: LinkLoop, timer: ThreadTimer | None) -> list[Connector]:
    if not plan.linked or plan.mode is Mode.AR:
        return []
    return [_connector(plan, endpoint, loop, timer) for endpoint in endpoints]


def _connector(plan: Plan, endpoint: str, loop: LinkLoop, timer: ThreadTimer | None) -> Connector:
    def dial(inbox: Inbox) -> Stream:
        return connect(endpoint, inbox, LinkSettings(), loop)

    delay = FaultPlan(delay_s=plan.one_way_ms / 1e3)
    late = faulty_connector(dial, incoming=delay, outgoing=delay, timer=timer) if plan.one_way_ms else dial
    return behave(late, plan.client)


def _lookups(engine: TargetEngine) -> dict[str, int]:
    read = engine.metrics.registry.get_sample_value
    return {r.value: int(read("ssd:cache_lookups_total", {"result": r.value}) or 0) for r in LookupResult}
