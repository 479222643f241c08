"""Stop, EOS and length inside accepted bursts, in every mode and at every K: rows 1 to 14 of the field failures.

A perfect scripted draft makes bursts of K + 1 tokens; what a client sees must not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scripted_draft import Script, ScriptedDraft, Truth
from support.target_rig import Client, Rig, assert_clean, connect, learn, request, run
from support.tiny import make_checkpoint

from ssd_cluster.errors import ContextTooLong
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import FinishReason, Mode

K_ALL = tuple(range(9))
SPECULATIVE = (Mode.SD, Mode.SSD)
PROMPT = range(5, 30)
LENGTH = 24


@pytest.fixture(scope="module")
def said(rig: Rig) -> list[int]:
    """What the target says after ``PROMPT`` if nothing ends it."""
    client = run(rig.engine(Mode.AR), [request("said", PROMPT, temperature=0, max_tokens=LENGTH, ignore_eos=True)])[0]
    return client.choices[0].token_ids


def every_engine(rig: Rig, one: GenerationRequest, k_values: tuple[int, ...] = K_ALL) -> Iterator[tuple[str, Client]]:
    """The request run plainly, then in both speculative modes at every K, with a draft that is always right."""
    free = request("free", PROMPT, temperature=one.params.temperature, max_tokens=LENGTH, ignore_eos=True)
    truth = Truth()
    learn(truth, run(rig.engine(Mode.AR), [free]))
    yield "ar", run(rig.engine(Mode.AR), [one])[0]
    for mode in SPECULATIVE:
        for k in k_values:
            draft = ScriptedDraft(Script(truth))
            engine = started(rig, mode, k, draft)
            yield f"{mode} k={k}", run(engine, [one])[0]
            assert_clean(engine, draft)
            engine.stop()


def started(rig: Rig, mode: Mode, k: int, draft: ScriptedDraft) -> TargetEngine:
    engine = rig.engine(mode, [draft.connect], speculation={"k": k})
    if k:
        connect(engine)
    return engine


def first_seen(tokens: list[int], at: int) -> int:
    """A position from ``at`` on whose token has not occurred before."""
    return next(i for i in range(at, len(tokens)) if tokens[i] not in tokens[:i])


def check_usage(client: Client) -> None:
    finished, choice = client.finished, client.choices[0]
    assert finished is not None
    assert finished.completion_tokens == len(choice.token_ids)
    assert finished.prompt_tokens == len(PROMPT)
    assert finished.cached_tokens <= finished.prompt_tokens
    stats = finished.speculation
    assert stats.num_accepted_draft_tokens <= min(stats.num_draft_tokens, finished.completion_tokens)
    assert sum(stats.acceptance_histogram) == stats.num_spec_steps
    assert sum(j * n for j, n in enumerate(stats.acceptance_histogram)) == stats.num_accepted_draft_tokens


@pytest.mark.parametrize("at", range(9))
def test_a_stop_token_ends_the_output_at_every_position_of_a_burst(rig: Rig, said: list[int], at: int) -> None:
    end = first_seen(said, at)
    one = request("r", PROMPT, temperature=0, max_tokens=LENGTH, ignore_eos=True, stop_token_ids=(said[end],))
    for name, client in every_engine(rig, one, (1, 4, 8)):
        choice = client.choices[0]
        assert choice.token_ids == said[: end + 1], name
        assert (choice.reason, choice.stop_reason) == (FinishReason.STOP, said[end]), name
        assert choice.text == rig.tokenizer.decode(said[:end]), name
        check_usage(client)


def test_every_eos_of_the_model_ends_the_output(said: list[int], tmp_path: Path) -> None:
    ends = sorted({first_seen(said, 4), first_seen(said, 7), first_seen(said, 11)})
    for kept in range(len(ends)):
        eos = [said[i] for i in ends[kept:]]
        rig = Rig.load(make_checkpoint(tmp_path / str(kept), eos=(*eos, 2)))
        one = request("r", PROMPT, temperature=0, max_tokens=LENGTH)
        for name, client in every_engine(rig, one, (1, 3, 8)):
            choice = client.choices[0]
            assert choice.token_ids == said[: ends[kept] + 1], name
            assert (choice.reason, choice.stop_reason) == (FinishReason.STOP, None), name
            assert choice.text == rig.tokenizer.decode(said[: ends[kept]]), name
            check_usage(client)


@pytest.mark.parametrize("limit", range(1, 11))
def test_no_burst_exceeds_max_tokens(rig: Rig, said: list[int], limit: int) -> None:
    one = request("r", PROMPT, temperature=0, max_tokens=limit, ignore_eos=True)
    for name, client in every_engine(rig, one, tuple(k for k in K_ALL if k >= limit - 2)):
        choice = client.choices[0]
        assert choice.token_ids == said[:limit], name
        assert choice.reason is FinishReason.LENGTH, name
        check_usage(client)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_stop_inside_the_budget_wins_and_one_beyond_it_does_not_count(rig: Rig, said: list[int], offset: int) -> None:
    end = first_seen(said, 6)
    limit = end + 1 + offset
    one = request("r", PROMPT, temperature=0, max_tokens=limit, ignore_eos=True, stop_token_ids=(said[end],))
    for name, client in every_engine(rig, one, (2, 5, 8)):
        choice = client.choices[0]
        assert len(choice.token_ids) == min(limit, end + 1), name
        assert choice.reason is (FinishReason.LENGTH if offset < 0 else FinishReason.STOP), name


@pytest.mark.parametrize("start", range(2, 14, 3))
@pytest.mark.parametrize("width", [1, 3])
def test_stop_strings_across_bursts_give_the_plain_text(rig: Rig, said: list[int], start: int, width: int) -> None:
    stop = rig.tokenizer.decode(said[start : start + width])
    if not stop or "\ufffd" in stop:
        stop = rig.tokenizer.decode(said[: start + width]).replace("\ufffd", "")[-2:]
    one = request("r", PROMPT, temperature=0, max_tokens=LENGTH, ignore_eos=True, stop=(stop, "never said"))
    runs = list(every_engine(rig, one, (1, 4, 8)))
    plain = runs[0][1].choices[0]
    assert plain.stop_reason == stop
    assert stop not in plain.text
    for name, client in runs:
        choice = client.choices[0]
        assert choice.token_ids == plain.token_ids, name
        assert choice.text == plain.text, name
        assert (choice.reason, choice.stop_reason) == (FinishReason.STOP, stop), name
        check_usage(client)


@pytest.mark.parametrize("min_tokens", [1, 3, 7])
def test_no_stop_token_before_min_tokens_at_any_burst_position(rig: Rig, said: list[int], min_tokens: int) -> None:
    one = request(
        "r",
        PROMPT,
        temperature=0,
        max_tokens=LENGTH,
        min_tokens=min_tokens,
        stop_token_ids=tuple(said[:8]),
    )
    runs = list(every_engine(rig, one, (1, 4, 8)))
    plain = runs[0][1].choices[0].token_ids
    assert not set(plain[:min_tokens]) & set(said[:8])
    assert plain[0] != said[0]
    for name, client in runs:
        assert client.choices[0].token_ids == plain, name
        check_usage(client)


def test_stopping_does_not_move_the_noise_of_later_positions(rig: Rig) -> None:
    whole = run(rig.engine(Mode.AR), [request("a", PROMPT, temperature=1.0, max_tokens=LENGTH, ignore_eos=True)])[0]
    said = whole.choices[0].token_ids
    for cut in (3, 9, 15):
        prompt = [*PROMPT, *said[:cut]]
        rest = run(
            rig.engine(Mode.AR), [request("b", prompt, temperature=1.0, max_tokens=LENGTH - cut, ignore_eos=True)]
        )
        assert rest[0].choices[0].token_ids == said[cut:]


def test_metrics_count_emitted_tokens_only(rig: Rig, said: list[int]) -> None:
    end = first_seen(said, 5)
    one = request("r", PROMPT, temperature=0, max_tokens=LENGTH, ignore_eos=True, stop_token_ids=(said[end],))
    free = request("free", PROMPT, temperature=0, max_tokens=LENGTH, ignore_eos=True)
    truth = Truth()
    learn(truth, run(rig.engine(Mode.AR), [free]))
    engine = started(rig, Mode.SSD, 8, ScriptedDraft(Script(truth)))
    client = run(engine, [one])[0]
    value = engine.metrics.registry.get_sample_value
    assert value("vllm:generation_tokens_total") == len(client.choices[0].token_ids)
    accepted = value("vllm:spec_decode_num_accepted_tokens_total")
    assert accepted is not None
    assert 0 < accepted <= len(client.choices[0].token_ids)
    per_position = [
        value("vllm:spec_decode_num_accepted_tokens_per_pos_total", {"position": str(position)}) or 0
        for position in range(8)
    ]
    assert sum(per_position) == accepted
    engine.stop()


@pytest.mark.parametrize("mode", list(Mode))
def test_the_context_may_be_filled_to_the_last_token_and_not_beyond(rig: Rig, mode: Mode) -> None:
    limit = rig.runner.max_context
    prompt = [5 + i % 250 for i in range(limit - 6)]
    plain = run(rig.engine(Mode.AR), [request("p", prompt, temperature=0, max_tokens=6, ignore_eos=True)])
    truth = Truth()
    learn(truth, plain)
    draft = ScriptedDraft(Script(truth), welcome={"max_context": 4096})
    engine = started(rig, mode, 8 if mode is not Mode.AR else 0, draft)
    client = run(engine, [request("r", prompt, temperature=0, max_tokens=6, ignore_eos=True)])[0]
    assert client.choices[0].token_ids == plain[0].choices[0].token_ids
    assert client.choices[0].reason is FinishReason.LENGTH
    with pytest.raises(ContextTooLong):
        engine.submit(request("long", prompt, max_tokens=7), client)
    assert_clean(engine, draft)
    engine.stop()
