"""Traces of a real pair: recorded, summarised, drawn, and refused when damaged."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.command import _trace_of
from ssd_cluster.bench.spec import PairOptions, engine_spec, traced
from ssd_cluster.bench.tracing.records import Trace, TracedBlock, TracedRound, TracedRow, TracedStep, read_trace
from ssd_cluster.bench.tracing.summary import build_times, summary
from ssd_cluster.bench.tracing.timeline import draw_timeline
from ssd_cluster.cli import main
from ssd_cluster.config import SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.tracefile import TraceWriter
from ssd_cluster.types import LookupResult, Mode


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """The trace of one answer in mode ssd, and what ``generate`` itself said about it."""
    folder = tmp_path_factory.mktemp("traced")
    target = make_checkpoint(folder / "target", layers=3)
    draft = perturb(target, folder / "draft", noise=0.05, seed=1)
    path, out = folder / "run.trace", folder / "out.json"
    options = f"--raw --target {target} --draft {draft} --dtype float32 --max-tokens 48 --ignore-eos --k 3 --rows 8"
    with pytest.MonkeyPatch.context() as patch, out.open("w") as stdout:
        patch.setattr("sys.stdout", stdout)
        assert main(["generate", "--prompt", "hello", *options.split(), "--json", "--trace", str(path)]) == 0
    return path, json.loads(out.read_text())


def test_every_token_is_in_the_trace(recorded: tuple[Path, dict[str, object]]) -> None:
    trace = read_trace(recorded[0])
    rows = [row for one in trace.rounds for row in one.rows]
    assert sum(row.emitted for row in rows) == 48
    assert trace.header["mode"] == "ssd"
    assert (trace.header["k"], trace.dropped) == (3, 0)
    assert rows[-1].next == "end"
    for before, after in pairwise(rows):
        assert (before.next in ("hit", "jit")) == (after.source == "draft"), (
            "the next proposal is the one verified next"
        )
    for one, following in pairwise(trace.rounds):
        assert one.start <= one.committed <= one.end <= following.start + 1e-9
        total = one.seconds("forward", "verify", "draft_wait", "link", "other")
        assert total == pytest.approx(one.end - one.start)


def test_the_trace_agrees_with_the_request_s_own_statistics(recorded: tuple[Path, dict[str, object]]) -> None:
    trace = read_trace(recorded[0])
    stats = recorded[1]["metrics"]["speculative_decoding"]  # type: ignore[index]
    rows = [row for one in trace.rounds for row in one.rows]
    assert sum(row.kept for row in rows) == stats["num_accepted_draft_tokens"]
    assert sum(row.proposed for row in rows) == stats["num_draft_tokens"]
    assert sum(row.lookup is LookupResult.HIT for row in rows) == stats["cache_hits"]
    assert sum(row.lookup not in (None, LookupResult.HIT) for row in rows) == stats["cache_misses"]


def test_the_draft_s_forwards_and_blocks_are_recorded(recorded: tuple[Path, dict[str, object]]) -> None:
    trace = read_trace(recorded[0])
    assert trace.steps, "the prompt at least was run"
    session = trace.rounds[-1].rows[0].session
    assert {block.session for block in trace.blocks} <= {session}
    assert {kind for step in trace.steps for _, kind, _ in step.spans} <= {"prefill", "glue", "tree", "jit"}
    assert all(step.rows == sum(rows for _, _, rows in step.spans) for step in trace.steps)
    assert trace.step_times, "the draft's own step time is noted"
    assert all(0 < seconds < 60 for seconds in build_times(trace))


def test_the_command_prints_and_draws(
    recorded: tuple[Path, dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "s.json", tmp_path / "t.png"
    assert main(["trace", str(recorded[0]), "--json", str(out), "--plot", str(picture), "--count", "10"]) == 0
    printed = capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert f"tokens            {figures['tokens']}" in printed
    assert figures["tokens_per_round"] >= 1
    assert sum(figures["kept"]) == pytest.approx(1 if figures["acceptance"] is not None else 0)
    assert figures["round_ms"] == pytest.approx(sum(figures["phase_ms"].values()))
    assert picture.read_bytes()[1:4] == b"PNG"
    assert main(["trace", str(recorded[0]), "--no-plot"]) == 0
    assert main(["trace", str(recorded[0]), "--first", "9999"]) == 2
    assert main(["trace", str(recorded[0]) + ".draft"]) == 2
    assert "name that of its target" in capsys.readouterr().err


def row(kept: int, proposed: int, lookup: LookupResult | None, following: str, source: str = "draft") -> TracedRow:
    return TracedRow((0, 0), 7, kept + 1, kept, proposed, source, lookup, 0, following)


def a_round(number: int, *rows: TracedRow, decoding: bool = True) -> TracedRound:
    start = number * 0.02
    laps = (("forward", start + 0.012), ("link", start + 0.014), ("draft_wait", start + 0.02))
    return TracedRound(start, laps, 4, decoding, rows)


def test_figures_of_a_known_trace() -> None:
    hit, miss = LookupResult.HIT, LookupResult.MISS
    trace = Trace({"mode": "ssd"})
    trace.rounds = [
        a_round(0, row(0, 0, None, "hit", "none"), decoding=False),
        a_round(1, row(3, 3, hit, "hit")),
        a_round(2, row(1, 3, miss, "jit")),
        a_round(3, row(0, 2, hit, "hit")),
        a_round(4, row(2, 3, None, "end")),
    ]
    trace.steps = [TracedStep(0.0, 0.002, 4, ((7, "glue", 4),)), TracedStep(0.002, 0.005, 8, ((7, "tree", 8),))]
    trace.blocks = [TracedBlock(0.005, 7, 8, 8, True)]
    figures = summary(trace)
    assert (figures["rounds"], figures["other_rounds"], figures["tokens"]) == (4, 1, 10)
    assert figures["round_ms"] == pytest.approx(20)
    assert figures["phase_ms"]["forward"] == pytest.approx(12)  # type: ignore[index]
    assert figures["kept"] == [0, 0.5, 0, 0.5], "the short proposal and the one that ended do not count"
    assert figures["hit_rate"] == pytest.approx(2 / 3)
    assert figures["next"] == {"hit": pytest.approx(2 / 3), "jit": pytest.approx(1 / 3)}
    assert figures["draft"]["build_ms"] == pytest.approx(5)  # type: ignore[index]
    assert figures["draft"]["utilisation"] == pytest.approx(1)  # type: ignore[index]


def test_an_empty_trace_has_figures_but_no_timeline(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "e.trace", {"role": "target"}).close()
    trace = read_trace(tmp_path / "e.trace")
    assert summary(trace)["rounds"] == 0
    with pytest.raises(ConfigError, match="there is no round 0"):
        draw_timeline(trace, tmp_path / "e.png")


@pytest.mark.parametrize(
    "record",
    [
        ["round", 0.0],
        ["round", 0.0, [["sleep", 1.0]], 1, True, []],
        ["round", 0.0, [["forward", 1.0]], 1, True, [[0, 0, 1, 1, 3, 2, "draft", None, None, "hit"]]],
        ["round", 0.0, [["forward", 1.0]], 1, True, [[0, 0, 1, 1, 0, 2, "draft", "found", None, "hit"]]],
        ["block", 1.0],
        ["step", 0.0, 1.0, 4, [["x"]]],
    ],
)
def test_records_that_do_not_fit_are_refused(tmp_path: Path, record: list[object]) -> None:
    writer = TraceWriter(tmp_path / "w.trace", {"role": "target"})
    writer.put(record)
    writer.close()
    with pytest.raises(ConfigError, match="does not fit"):
        read_trace(tmp_path / "w.trace")


def test_every_mode_of_a_benchmark_has_a_file_of_its_own(tmp_path: Path) -> None:
    options = PairOptions(target="t", draft="d", speculation=SpeculationSettings(), draft_cores=(0,))
    specs = {mode: traced(engine_spec(mode, options), _trace_of(tmp_path / "out.trace", mode)) for mode in Mode}
    assert {str(spec.target.trace) for spec in specs.values()} == {str(tmp_path / f"out-{m.value}.trace") for m in Mode}
    drafts = {mode: spec.draft.trace for mode, spec in specs.items() if spec.draft is not None}
    assert drafts == {mode: tmp_path / f"out-{mode.value}.trace.draft" for mode in (Mode.SD, Mode.SSD)}
    untraced = engine_spec(Mode.SSD, options)
    assert traced(untraced, _trace_of(None, Mode.SSD)) == untraced
