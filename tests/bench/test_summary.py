"""Figures of the benchmark, on records small enough to work out by hand."""

from __future__ import annotations

import pytest

from ssd_cluster.bench.handle import RequestRecord, RunRecord
from ssd_cluster.bench.summary import (
    answer_speed,
    decode_speed,
    differing_outputs,
    round_breakdown,
    summarise,
    tokens_per_round,
    user_speed,
)
from ssd_cluster.types import Mode


def request(start: float = 0.0, stop: float = 1.0, tokens: int = 11, **more: int) -> RequestRecord:
    return RequestRecord(first_token_s=start, finished_s=stop, prompt_tokens=5, completion_tokens=tokens, **more)


def run(*requests: RequestRecord, rounds: int = 10, **more: object) -> RunRecord:
    return RunRecord(requests=requests, rounds=rounds, phase_s=more.pop("phase_s", {}), **more)


def test_speed_counts_decoding_only() -> None:
    assert decode_speed([request(0, 2), request(5, 8)]) == pytest.approx(20 / 5), "the pause is prefill"
    assert decode_speed([request(0, 2), request(1, 3)]) == pytest.approx(20 / 3), "overlap counts once"
    assert decode_speed([request(0, 9), request(2, 3), request(4, 5)]) == pytest.approx(30 / 9)
    assert decode_speed([request(1, 1, tokens=1)]) == 0


def test_speed_of_one_user_and_of_whole_answers() -> None:
    both = [request(0, 2), request(1, 3)]
    assert user_speed(both) == pytest.approx(5), "while decode_speed has both at once"
    burst = RequestRecord(
        submitted_s=1, first_token_s=2, finished_s=4, first_tokens=5, prompt_tokens=5, completion_tokens=9
    )
    assert user_speed([burst]) == decode_speed([burst]) == pytest.approx(2), "the first part held five tokens"
    assert answer_speed([burst]) == pytest.approx(3)
    assert user_speed([]) == answer_speed([]) == 0


def test_tokens_per_round_counts_t_star_and_plain_rounds() -> None:
    plain = request(tokens=11)
    assert tokens_per_round([plain]) == 1
    speculative = request(tokens=11, spec_steps=3, accepted_tokens=5, draft_tokens=12)
    assert tokens_per_round([speculative]) == pytest.approx(10 / 5), "3 rounds give 8 tokens, 2 plain ones the rest"
    cut = request(tokens=4, spec_steps=1, accepted_tokens=3, draft_tokens=4)
    assert tokens_per_round([cut]) == pytest.approx(3), "ended inside its accepted tokens, without t*"
    assert tokens_per_round([speculative, cut]) == pytest.approx(13 / 6), "rounds are pooled, not averaged"
    assert tokens_per_round([request(tokens=1)]) == 0


def test_summary_of_repetitions() -> None:
    counts = {"spec_steps": 4, "draft_tokens": 20, "accepted_tokens": 6}
    runs = [
        run(request(0, stop, cache_hits=3, cache_misses=1, **counts), hit_round_s=(stop / 1000,))
        for stop in (2.0, 1.0, 4.0)
    ]
    result = summarise(Mode.SSD, 0.7, 1, runs)
    assert (result.mode, result.temperature, result.batch) == (Mode.SSD, 0.7, 1)
    speed = result.tokens_per_s
    assert (speed.median, speed.min, speed.max) == (5.0, 2.5, 10.0)
    assert result.hit_round_ms == pytest.approx(7 / 3)
    assert result.per_user == speed
    assert (result.label, summarise(Mode.AR, 0.7, 1, runs, "ar on 0,1").label) == ("ssd", "ar on 0,1")
    assert result.acceptance == pytest.approx(0.3)
    assert result.hit_rate == pytest.approx(0.75)
    assert result.tokens_per_round == pytest.approx(10 / 4)


def test_figures_without_data_are_none() -> None:
    result = summarise(Mode.AR, 0.0, 1, [run(request())])
    assert (result.acceptance, result.hit_rate, result.round_ms["hit_path"]) == (None, None, None)


def test_round_breakdown_weighs_rounds_and_adds_up() -> None:
    first = run(request(), rounds=1, phase_s={"target_forward": 0.010, "other": 0.002}, hit_path_s=(0.001, 0.009))
    second = run(request(), rounds=3, phase_s={"target_forward": 0.050, "draft_wait": 0.004}, hit_path_s=(0.002,))
    means = round_breakdown([first, second])
    assert means["target_forward"] == pytest.approx(15)
    assert means["draft_wait"] == pytest.approx(1)
    assert means["other"] == pytest.approx(0.5)
    assert means["link"] == 0
    assert means["total"] == pytest.approx(16.5)
    assert means["hit_path"] == pytest.approx(2)


def test_differing_outputs() -> None:
    one, two = run(request(output_crc=1), request(output_crc=2)), run(request(output_crc=1), request(output_crc=3))
    assert differing_outputs(one, one) == 0
    assert differing_outputs(one, two) == 1
