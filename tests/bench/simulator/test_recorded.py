"""A trace gives the model its times and its outcomes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ssd_cluster.bench.simulator.from_trace import trace_laws, trace_settings
from ssd_cluster.bench.simulator.run import simulate
from ssd_cluster.bench.simulator.sweep import settings_of
from ssd_cluster.bench.tracing.records import Trace, TracedStep, read_trace
from ssd_cluster.cli import main
from ssd_cluster.errors import ConfigError
from ssd_cluster.tracefile import TraceWriter

HEADER = {"role": "target", "mode": "ssd", "k": 4, "rows": 20, "miss_policy": "always_wait", "wait_ms": 100.0}
VERIFY_S, HOST_S, STEP_S = 0.018, 0.002, 0.002


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """1500 rounds of one sequence: acceptance .8 then .5, hits .75 on rank 0 or 1, chains after misses."""
    rng = random.Random(3)
    path = tmp_path / "r.trace"
    writer = TraceWriter(path, HEADER)
    now = 100.0
    for _ in range(1500):
        kept = next((j for j, a in enumerate((0.8, 0.5, 0.5, 0.5)) if rng.random() >= a), 4)
        u = rng.random()
        lookup, rank, following = ("hit", int(u >= 0.5), "hit") if u < 0.75 else ("miss", None, "jit")
        end = now + VERIFY_S
        laps = [("forward", end), ("link", end + HOST_S)]
        laps += [] if following == "hit" else [("draft_wait", end + 4 * STEP_S)]
        row = (0, 0, 7, kept + 1, kept, 4, "draft", lookup, rank, following)
        writer.put(("round", now, laps, 5, True, [row]))
        now = laps[-1][1]
    writer.put(("draft", now, "d", STEP_S * 1e6, 0.0))
    writer.close()
    return path


def test_times_and_policy_are_those_of_the_trace(recorded: Path) -> None:
    settings = settings_of(trace_settings(read_trace(recorded)))
    assert settings.verify_ms.seconds(5) == pytest.approx(VERIFY_S)
    assert settings.overhead_ms == pytest.approx(1e3 * HOST_S)
    assert settings.step_ms.seconds(1) == settings.step_ms.seconds(40) == pytest.approx(STEP_S)
    assert (settings.batch, settings.k, settings.rows, settings.miss_policy) == (1, 4, 20, "always_wait")


def test_the_model_repeats_what_was_recorded(recorded: Path) -> None:
    trace = read_trace(recorded)
    settings = settings_of(trace_settings(trace) | {"rounds": 3000})
    result = simulate(settings, trace_laws(trace))
    rows = [row for one in trace.rounds for row in one.rows]
    speed = sum(row.emitted for row in rows) / (trace.rounds[-1].end - trace.rounds[0].start)
    assert result.hit_rate == pytest.approx(0.75, abs=0.03)
    assert result.tokens_per_round == pytest.approx(1 + 0.8 * (1 + 0.5 + 0.25 + 0.125), rel=0.03)
    assert result.tokens_per_s == pytest.approx(speed, rel=0.04)


def test_forwards_of_the_draft_give_a_line(recorded: Path) -> None:
    trace = read_trace(recorded)
    trace.steps = [TracedStep(n, n + 1e-3 * (2 + 0.1 * rows), rows, ()) for n, rows in enumerate([1, 4, 8, 16, 24])]
    times = settings_of(trace_settings(trace)).step_ms
    assert [1e3 * times.seconds(rows) for rows in (1, 30, 64)] == [pytest.approx(v, rel=1e-4) for v in (2.1, 5, 8.4)]


def test_a_trace_without_decoding_is_refused() -> None:
    with pytest.raises(ConfigError, match="no decoding rounds"):
        trace_settings(Trace(dict(HEADER)))


def test_the_command_takes_a_trace_and_refuses_other_laws(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["simulate", "--trace", str(recorded), "--rounds", "300", "--modes", "ssd"]
    assert main([*given, "--sweep", "step-ms=2,6"]) == 0
    fast, slow = (float(line.split()[2]) for line in capsys.readouterr().out.splitlines()[2:])
    assert fast > 1.1 * slow
    assert main([*given, "--hits", "0.9"]) == 2
    assert main([*given, "--sweep", "acceptance=0.1"]) == 2
    assert main([*given, "--preset", "paper-qwen-32b"]) == 2
    assert "outcomes are those of the trace" in capsys.readouterr().err
