"""``bench serve`` as typed, and the figures of its runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.sse_server import TOKENS_PER_PART, sse_server

from ssd_cluster.bench.endpoint.client import Answer
from ssd_cluster.bench.load.figures import load_result
from ssd_cluster.bench.load.offer import arrivals, offer
from ssd_cluster.cli import main


def entry(due: float, parts: list[float], tokens: int, error: str | None = None) -> dict[str, Any]:
    return {"due": due, "asked": due + 0.01, "parts": parts, "completion_tokens": tokens, "error": error}


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(4.0, 4000, "s")
    assert times == arrivals(4.0, 4000, "s") != arrivals(4.0, 4000, "t")
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.06)
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(0.135, abs=0.02), (
        "e^-2 of them are twice as long"
    )


def test_requests_leave_although_earlier_ones_are_not_answered() -> None:
    async def talk() -> dict[str, Any]:
        everyone = asyncio.Event()
        there = 0

        async def ask(index: int) -> Answer:
            nonlocal there
            there += 1
            if there == 3:
                everyone.set()
            await asyncio.wait_for(everyone.wait(), 20)  # a closed loop would wait for ever
            return Answer(float(index), [index + 1.0], 1, 1)

        return await offer(ask, [0.0, 0.001, 0.002])

    record = asyncio.run(talk())
    assert [request["due"] for request in record["requests"]] == [0.0, 0.001, 0.002]
    assert record["seconds"] > 0


def test_figures_by_hand() -> None:
    run = {
        "seconds": 10.0,
        "requests": [
            entry(0.0, [0.1, 0.2, 0.5], 9),
            entry(1.0, [1.3, 1.4], 3),
            entry(2.0, [2.1], 4, error="cut off"),
        ],
    }
    result = load_result(0.3, [run, run], devices=2)
    assert (result.answered, result.errors, result.repetitions) == (4, {"cut off": 2}, 2)
    assert result.tokens_per_s.median == pytest.approx(1.2), "tokens of complete answers only"
    assert result.per_device is not None
    assert result.per_device.median == pytest.approx(0.6)
    assert result.ttft_p50 is not None
    assert result.ttft_p50.median == pytest.approx(200.0), "from when it was due: 100 and 300 ms"
    assert result.token_p50 is not None
    assert result.token_p50.median == pytest.approx(50.0), "400 ms for 8 tokens and 100 ms for 2: both 50"
    assert result.gap_p50 is not None
    assert result.gap_p50.median == pytest.approx(100.0)
    assert result.per_user is not None
    assert result.per_user.median == pytest.approx(20.0)
    assert result.lag_p99 is not None
    assert result.lag_p99.median == pytest.approx(10.0)
    nothing = load_result(1.0, [{"seconds": 1.0, "requests": [entry(0.0, [], 0, "timeout")]}], None)
    assert (nothing.answered, nothing.ttft_p50, nothing.per_device) == (0, None, None)


def command(url: str, prompts: Path, out: Path, *more: str) -> list[str]:
    return [
        "bench", "serve", "--url", url, "--prompts", str(prompts), "--rate", "40,80", "--requests", "4",
        "--repetitions", "2", "--json", str(out), *more,
    ]  # fmt: skip


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, out, plot = tmp_path / "p.jsonl", tmp_path / "out.json", tmp_path / "figures" / "out.png"
    prompts.write_text('{"prompt": "hello"}\n{"prompt": "busy"}\n')
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o600)
    with sse_server(key="secret") as (url, bodies):
        typed = command(url, prompts, out, "--api-key-file", str(key), "--plot", str(plot), "--devices", "2")
        assert main(typed) == 0
        assert len(bodies) == 2 * 2 * 4
        assert main(typed) == 0
        assert len(bodies) == 2 * 2 * 4, "what is there is not asked again"
    printed = capsys.readouterr().out
    assert "status 429: 4" in printed
    assert 'status 429: for example {"error"' in printed
    content = json.loads(out.read_text())
    assert "secret" not in out.read_text()
    slow, fast = content["results"]
    assert (slow["rate"], fast["rate"]) == (40, 80)
    for result in (slow, fast):
        assert (result["answered"], result["errors"]) == (4, {"status 429": 4})
        assert result["tokens_per_s"]["median"] == pytest.approx(2 * result["per_device"]["median"])
    assert all(
        request["completion_tokens"] in (0, 2 * TOKENS_PER_PART)
        for record in content["records"].values()
        for request in record["requests"]
    )
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_nothing_answered_is_a_failure_and_bad_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "busy"}\n')
    with sse_server() as (url, _):
        assert main(command(url, prompts, out, "--repetitions", "1")) == 1
        assert main(command(url, prompts, out, "--rate", "0")) == 2
        assert main(command(url, prompts, out, "--max-tokens", "3")) == 2
    error = capsys.readouterr().err
    assert "--rate must be above 0" in error
    assert "other settings (max_tokens)" in error
    assert main(command("localhost", prompts, tmp_path / "other.json")) == 2
    assert "no URL" in capsys.readouterr().err
