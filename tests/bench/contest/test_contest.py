"""Order, continuation and figures of comparisons, on contenders that answer at a fixed speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_cluster.bench.contest.entries import Entry, Stable
from ssd_cluster.bench.contest.options import what_ranges_say
from ssd_cluster.bench.contest.results import hit_rate, paired, results_of
from ssd_cluster.bench.contest.run import Contest, run_missing
from ssd_cluster.bench.handle import RequestRecord, RunRecord, Workload
from ssd_cluster.bench.store import Store
from ssd_cluster.errors import EngineStopped

COLD = Workload(prompts=("a", "b", "c"), max_tokens=11)
HOT = Workload(prompts=("a", "b", "c"), max_tokens=11, temperature=1.0, batch=2)


class Steady:
    """Ten tokens behind the first in ``seconds``; logs (name, temperature, prompts)."""

    def __init__(self, name: str, seconds: float, log: list[tuple[str, float, int]]) -> None:
        self.name, self.seconds, self.log = name, seconds, log
        self.closed = False

    def run(self, workload: Workload) -> RunRecord:
        if self.seconds < 0:
            raise EngineStopped("out of luck")
        self.log.append((self.name, workload.temperature, len(workload.prompts)))
        return RunRecord(requests=(request(self.seconds),) * len(workload.prompts), rounds=4, phase_s={"other": 0.2})

    def close(self) -> None:
        self.closed = True


def request(seconds: float, **more: int) -> RequestRecord:
    return RequestRecord(
        submitted_s=9.0, first_token_s=10.0, finished_s=10.0 + seconds, prompt_tokens=1, completion_tokens=11, **more
    )


class House:
    """Entries by name and speed, and what became of them."""

    def __init__(self, **seconds: float) -> None:
        self.log: list[tuple[str, float, int]] = []
        self.started: list[Steady] = []
        self.entries = [Entry(name, self._start(name, s)) for name, s in seconds.items()]

    def _start(self, name: str, seconds: float):
        def start() -> Steady:
            self.started.append(Steady(name, seconds, self.log))
            return self.started[-1]

        return start

    @property
    def counted(self) -> list[tuple[str, float]]:
        """Runs of whole workloads."""
        return [(name, temperature) for name, temperature, n in self.log if n == 3]


def held(house: House, store: Store, repetitions: int, **more: object) -> int:
    contest = Contest(house.entries, [COLD, HOT], repetitions)
    return run_missing(contest, store, **({"alive": 4, "minutes": None, "progress": lambda line: None} | more))


def test_entries_alternate_and_every_repetition_begins_with_another() -> None:
    house = House(a=1.0, b=0.5)
    assert held(house, Store(None, {}), 2) == 0
    a, b = [("a", 0.0), ("a", 1.0)], [("b", 0.0), ("b", 1.0)]
    assert house.counted == [*a, *b, *b, *a]
    assert house.log[:4] == [("a", 0.0, 1), ("a", 0.0, 3), ("a", 1.0, 2), ("a", 1.0, 3)], "one batch first, not counted"
    assert [one.name for one in house.started] == ["a", "b"]
    assert all(one.closed for one in house.started)


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    first = House(a=1.0, b=0.5)
    times = iter([0.0, 0.0, 0.0, 30.0, 30.0, 61.0])
    assert held(first, Store(out, {"x": 1}), 2, minutes=1.0, clock=lambda: next(times)) == 6
    assert first.counted == [("a", 0.0), ("a", 1.0)]
    second = House(a=1.0, b=0.5)
    assert held(second, Store(out, {"x": 1}), 2) == 0
    assert second.counted == [("b", 0.0), ("b", 1.0), ("b", 0.0), ("b", 1.0), ("a", 0.0), ("a", 1.0)]
    third = House(a=1.0, b=0.5)
    assert held(third, Store(out, {"x": 1}), 2) == 0
    assert not third.started


def test_a_failure_stops_all_and_keeps_what_was_done() -> None:
    house, store = House(a=1.0, b=-1.0), Store(None, {})
    with pytest.raises(EngineStopped, match="out of luck"):
        held(house, store, 1)
    assert all(one.closed for one in house.started)
    assert "a|T=0 B=1|0" in store


def test_only_so_many_run_at_a_time() -> None:
    house = House(a=1.0, b=1.0, c=1.0)
    stable = Stable(2, lambda line: None)
    a, b, c = house.entries
    assert [stable.take(entry)[1] for entry in (a, b, a, c, a, b)] == [True, True, False, True, False, True]
    assert [(one.name, one.closed) for one in house.started] == [
        ("a", False), ("b", True), ("c", True), ("b", False),
    ]  # fmt: skip
    stable.close()
    assert all(one.closed for one in house.started)


def test_results_compare_repetition_by_repetition() -> None:
    house, store = House(a=1.0, b=0.5), Store(None, {})
    contest = Contest(house.entries, [COLD], 3)
    house.started.clear()
    run_missing(contest, store, alive=1, minutes=None, progress=lambda line: None)
    slow, fast = results_of(contest, store, ["a"])
    assert (slow.name, slow.ratios, slow.repetitions, slow.tokens) == ("a", {}, 3, 99)
    assert slow.tokens_per_s.median == slow.per_user.median * 3 == 30.0, "all three at once"
    assert fast.ratios["a"].median == pytest.approx(2.0)
    assert fast.answer_speed.median == pytest.approx(11 / 1.5), "asked a second before the first token"
    assert slow.round_ms["other"] == pytest.approx(50.0)
    assert slow.hits is None


def test_ratios_need_both_runs_of_a_repetition() -> None:
    fast, slow = (RunRecord(requests=(request(s),), rounds=1, phase_s={}) for s in (0.5, 1.0))
    both = paired([fast, None, slow], [slow, fast, slow])
    assert both is not None
    assert (both.min, both.max) == (1.0, 2.0)
    assert paired([None], [slow]) is None


def test_hits_are_clustered_by_prompt() -> None:
    run = RunRecord(
        requests=(request(1.0, cache_hits=9, cache_misses=1), request(1.0, cache_hits=1, cache_misses=9)),
        rounds=1,
        phase_s={},
    )
    found = hit_rate([run, run])
    assert found is not None
    assert found.value == 0.5
    assert (found.low, found.high) == (0.1, 0.9), "two prompts: a resample may hold one of them twice"


def test_ranges_say_how_sure_they_are() -> None:
    assert "93.8 %" in what_ranges_say(5)
    assert "no range" in what_ranges_say(1)
