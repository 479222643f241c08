"""What the figures say, in a line each; ratios are taken within repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import shown, spread
from ssd_cluster.bench.pool.cells import SMALL
from ssd_cluster.bench.pool.clients import Client
from ssd_cluster.bench.pool.tables import FALL, Figure, Measured, hits_per_round, peaks, slowest, speed
from ssd_cluster.bench.store import Record
from ssd_cluster.bench.summary import Spread

LEAST_OF_AR = 0.95
MOST_PUSH_LOSS = 0.05
_SHARE = "{:.3f}"


def ratio(one: Measured, base: Measured, figure: Figure) -> Spread | None:
    """A figure by that of another cell of the same repetition."""
    pairs = [(figure(a), figure(b)) for a, b in zip(one.records, base.records, strict=False)]
    values = [a / b for a, b in pairs if a is not None and b]
    return spread(values) if values else None


def carried(measured: Sequence[Measured]) -> tuple[int, bool] | None:
    """Most sequences before the hits per round fell by ``FALL``, and whether more were tried and did not hold.

    Cells are in rising order; None where the first has no hits.
    """
    most: int | None = None
    for one in measured:
        held = ratio(one, measured[0], lambda record: hits_per_round(record["targets"]))
        if held is None:
            return None
        if held.median < 1 - FALL:
            return (most, True) if most is not None else None
        most = one.cell.sequences
    return (most, False) if most is not None else None


def of_capacity(measured: Sequence[Measured]) -> list[str]:
    """How many sequences one draft carried."""
    found = carried(measured)
    if found is None:
        return ["there were no hits to compare with"]
    most, ended = found
    beyond = "the next number tried did not hold" if ended else "no larger number was tried"
    return [f"one draft carried {most} sequences before its hits per round fell by {100 * FALL:.0f} %; {beyond}"]


def of_sharing(measured: Sequence[Measured]) -> list[str]:
    """What the small target lost."""
    alone, beside = measured
    left = ratio(beside, alone, _of_small)
    if left is None:
        return ["the small target had no hits"]
    rows: list[Sequence[str]] = [("small target", "hits per round", "tokens/s")]
    for one in measured:
        hits, speeds = one.spread(_of_small), one.of(SMALL, speed)
        rows.append((one.cell.name, shown(hits, _SHARE), shown(speeds)))
    fell, most = 100 * (1 - left.median), 100 * (1 - left.min)
    word = "holds" if fell < 100 * FALL else "does not hold"
    line = f"its hits per round fell by {fell:.1f} % (at most {most:.1f} % in a repetition; less than"
    return [aligned(rows), f"{line} {100 * FALL:.0f} % {word})"]


def of_overload(measured: Sequence[Measured]) -> list[str]:
    """Speed by plain decoding's, and how long the draft's queues were."""
    plain, *others = measured
    rows: list[Sequence[str]] = [
        ("targets", "by ar", "slowest by ar", "messages", "rows wanted", "sessions", "unsent frames")
    ]
    for one in others:
        every = ratio(one, plain, lambda record: speed(record["targets"]))
        worst = ratio(one, plain, lambda record: slowest(record["targets"]))
        most = peaks(one)
        queues = [str(most.get(name, "-")) for name in ("messages", "rows", "sessions", "unsent")]
        rows.append((one.cell.name, shown(every, _SHARE), shown(worst, _SHARE), *queues))
    least = min((r.min for one in others if (r := ratio(one, plain, _slowest)) is not None), default=0.0)
    word = "holds" if least >= LEAST_OF_AR else "does not hold"
    line = f"slowest target in any repetition: {100 * least:.1f} % of ar (at least {100 * LEAST_OF_AR:.0f} % {word})"
    return [aligned(rows), "queues: the longest in all repetitions", line]


def of_latency(measured: Sequence[Measured]) -> list[str]:
    """Push and pull by what they were without added latency."""
    by_client = {client: [one for one in measured if _client(one) is client] for client in (Client.PUSH, Client.PULL)}
    rows: list[Sequence[str]] = [("added one way", "push", "push by 0 ms", "pull", "pull by 0 ms", "push by pull")]
    lines = []
    for push, pull in zip(by_client[Client.PUSH], by_client[Client.PULL], strict=True):
        ms = push.cell.plans[0].one_way_ms
        kept = [ratio(one, by_client[client][0], _speed) for client, one in ((Client.PUSH, push), (Client.PULL, pull))]
        rows.append(
            (
                f"{ms:g} ms",
                shown(push.spread(_speed)),
                shown(kept[0], _SHARE),
                shown(pull.spread(_speed)),
                shown(kept[1], _SHARE),
                shown(ratio(push, pull, _speed), _SHARE),
            )
        )
        if ms == 1 and kept[0] is not None:
            lost = 1 - kept[0].median
            word = "holds" if lost < MOST_PUSH_LOSS else "does not hold"
            lines.append(f"push loses {100 * lost:.1f} % at 1 ms (less than {100 * MOST_PUSH_LOSS:.0f} % {word})")
    return [aligned(rows), *lines]


def of_sharding_out(measured: Sequence[Measured]) -> list[str]:
    """Hits per round and speed by those of one draft."""
    alone, *others = measured
    rows: list[Sequence[str]] = [("drafts", "hits per round by one draft's", "tokens/s by one draft's")]
    for one in others:
        hits = ratio(one, alone, lambda record: hits_per_round(record["targets"]))
        rows.append((one.cell.name, shown(hits, _SHARE), shown(ratio(one, alone, _speed), _SHARE)))
    return [aligned(rows)]


def as_json(figure: str, measured: Sequence[Measured]) -> dict[str, Any]:
    """The verdict of a figure in numbers, per repetition the least and the most."""
    if figure == "capacity":
        found = carried(measured)
        return {"carried": None if found is None else found[0], "more_did_not_hold": found is not None and found[1]}
    base = measured[0]
    of = {"sharing": _of_small, "overload": _slowest, "latency": _speed, "sharding": _speed}[figure]
    ratios = {one.cell.name: ratio(one, base, of) for one in measured[1:]}
    return {f"by {base.cell.name}": {name: asdict(r) for name, r in ratios.items() if r is not None}}


def _client(one: Measured) -> Client | None:
    plan = one.cell.plans[0]
    return plan.client if one.cell.linked else None


def _speed(record: Record) -> float | None:
    return speed(record["targets"])


def _slowest(record: Record) -> float | None:
    return slowest(record["targets"])


def _of_small(record: Record) -> float | None:
    return hits_per_round([t for t in record["targets"] if t["name"] == SMALL])
