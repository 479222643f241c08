"""Finish logic and text of one choice, token by token."""

from __future__ import annotations

import pytest
from support.target_rig import Rig

from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.finish import Accepted, FinishRules, OutputState
from ssd_cluster.types import FinishReason

EOS = (2, 7)


def output(rig: Rig, **params: object) -> OutputState:
    fields = {"max_tokens": 50} | params
    return OutputState(FinishRules.of(SamplingParams(**fields), EOS), rig.tokenizer)  # type: ignore[arg-type]


def ids(rig: Rig, text: str) -> list[int]:
    return rig.tokenizer.encode(text)


@pytest.mark.parametrize("eos", EOS)
@pytest.mark.parametrize("at", range(5))
def test_any_eos_ends_a_burst_at_any_position(rig: Rig, eos: int, at: int) -> None:
    burst = [50, 51, 52, 53, 54]
    burst[at] = eos
    state = output(rig)
    assert state.accept(burst) == Accepted(at + 1, FinishReason.STOP)
    assert state.count == at + 1
    assert state.take_text() == rig.tokenizer.decode(burst[:at])


def test_ignore_eos_goes_on_but_explicit_ids_still_stop(rig: Rig) -> None:
    state = output(rig, ignore_eos=True, stop_token_ids=(51,))
    assert state.accept([2, 50, 7]) == Accepted(3)
    assert state.accept([51, 52]) == Accepted(1, FinishReason.STOP, 51)


def test_the_limit_cuts_a_burst(rig: Rig) -> None:
    state = output(rig, max_tokens=3)
    assert state.accept([50, 51]) == Accepted(2)
    assert state.accept([52, 53, 54]) == Accepted(1, FinishReason.LENGTH)


def test_a_stop_on_the_last_allowed_token_wins_over_the_limit(rig: Rig) -> None:
    assert output(rig, max_tokens=2).accept([50, 2, 51]) == Accepted(2, FinishReason.STOP)
    letters = ids(rig, "ab")
    state = output(rig, max_tokens=len(letters), stop=("ab",))
    assert state.accept(letters) == Accepted(len(letters), FinishReason.STOP, "ab")


@pytest.mark.parametrize("split", range(1, 12))
def test_stop_strings_are_found_wherever_bursts_end(rig: Rig, split: int) -> None:
    tokens = ids(rig, "hello END world")
    state = output(rig, stop=("END",))
    emitted, text, ended = 0, "", None
    for start in range(0, len(tokens), split):
        accepted = state.accept(tokens[start : start + split])
        emitted += accepted.count
        text += state.take_text()
        if accepted.reason is not None:
            ended = accepted
            break
    assert ended is not None
    assert ended.stop_reason == "END"
    assert text == "hello "
    assert rig.tokenizer.decode(tokens[:emitted]).rstrip() == "hello END"


def test_held_back_text_appears_when_no_stop_string_comes(rig: Rig) -> None:
    state = output(rig, stop=("END",))
    state.accept(ids(rig, "the EN"))
    first = state.take_text()
    state.accept([2])
    assert first == "the "
    assert state.take_text() == "EN"


def test_no_stop_string_is_looked_for_before_min_tokens(rig: Rig) -> None:
    tokens = ids(rig, "xyxyxy")
    state = output(rig, stop=("xy",), min_tokens=3)
    accepted = state.accept(tokens)
    assert accepted.reason is FinishReason.STOP
    assert accepted.count > 3
    assert state.take_text() == rig.tokenizer.decode(tokens[: accepted.count])[: -len("xy")]


@pytest.mark.parametrize("burst", range(1, 6))
def test_split_characters_never_show_as_replacement(rig: Rig, burst: int) -> None:
    said = "héllo 👩‍🚀 漢字"
    tokens = ids(rig, said)
    state = output(rig)
    parts = []
    for start in range(0, len(tokens), burst):
        state.accept(tokens[start : start + burst])
        parts.append(state.take_text())
    assert "".join(parts) == said
    assert not any("\ufffd" in part for part in parts)


def test_an_output_that_breaks_off_inside_a_character_ends_with_a_replacement(rig: Rig) -> None:
    tokens = ids(rig, "漢")
    state = output(rig, max_tokens=len(tokens) - 1)
    accepted = state.accept(tokens)
    assert accepted.reason is FinishReason.LENGTH
    assert state.take_text() == rig.tokenizer.decode(tokens[:-1])


def test_abandoning_shows_what_was_held_back(rig: Rig) -> None:
    state = output(rig, stop=("END",))
    state.accept(ids(rig, "the EN"))
    assert state.take_text() + state.abandon() == "the EN"
