"""Stop strings (field failure 5, text part): the matcher against a search over all prefixes of the text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.errors import InvalidRequest
from ssd_cluster.text import StopMatcher

LETTERS = st.text(alphabet="abé", min_size=1, max_size=5)


def _oracle(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """Text before the first match and the match: earliest end, then earliest start."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            match = max(ending, key=len)
            return text[: end - len(match)], match
    return text, None


def _held(stops: tuple[str, ...], text: str) -> str:
    """The longest suffix of text that begins a stop string."""
    suffixes = (text[start:] for start in range(len(text)))
    return next((suffix for suffix in suffixes if any(stop.startswith(suffix) for stop in stops)), "")


def _run(stops: tuple[str, ...], parts: list[str]) -> tuple[str, str | None]:
    matcher, shown = StopMatcher(stops), ""
    for part in parts:
        safe, match = matcher.push(part)
        shown += safe
        if match is not None:
            return shown, match
    return shown + matcher.flush(), None


@settings(max_examples=500, deadline=None)
@given(st.lists(LETTERS, max_size=4).map(tuple), st.lists(st.text(alphabet="abé", max_size=6), max_size=8))
def test_matcher_equals_the_oracle_for_any_split(stops: tuple[str, ...], parts: list[str]) -> None:
    assert _run(stops, parts) == _oracle(stops, "".join(parts))


@settings(max_examples=300, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=3).map(tuple), st.text(alphabet="abé", max_size=20))
def test_only_a_possible_beginning_is_held_back(stops: tuple[str, ...], text: str) -> None:
    matcher, shown = StopMatcher(stops), ""
    for end, character in enumerate(text, start=1):
        safe, match = matcher.push(character)
        shown += safe
        if match is not None:
            return
        assert shown == text[:end].removesuffix(_held(stops, text[:end]))


def test_stop_completed_early_in_a_burst_cuts_the_rest() -> None:
    assert StopMatcher(("END",)).push("one END two END") == ("one ", "END")


def test_stop_spread_over_parts() -> None:
    matcher = StopMatcher(("\n\n",))
    assert matcher.push("line\n") == ("line", None)
    assert matcher.push("next\n") == ("\nnext", None)
    assert matcher.push("\nrest") == ("", "\n\n")


def test_earliest_end_wins_over_earliest_start() -> None:
    assert StopMatcher(("abcd", "bc")).push("xabcd") == ("xa", "bc")


def test_of_two_with_the_same_end_the_longer_wins() -> None:
    assert StopMatcher(("c", "abc")).push("xabc") == ("x", "abc")


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(("x",))
    assert matcher.push("ax") == ("a", "x")
    assert matcher.push("more") == ("", "x")
    assert matcher.flush() == ""


def test_without_stops_text_passes_through() -> None:
    matcher = StopMatcher(())
    assert matcher.push("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(("a", ""))
    assert caught.value.param == "stop"


def test_cost_does_not_depend_on_what_is_held_back() -> None:
    """A long stop string and text that keeps almost matching it: steps stay linear in the text."""
    stop = "a" * 2000 + "b"
    matcher = StopMatcher((stop,))
    steps = 0
    original = matcher._step

    def counted(state: int, character: str) -> int:
        nonlocal steps
        steps += 1
        return original(state, character)

    matcher._step = counted  # type: ignore[method-assign]
    text = "a" * 6000
    shown = "".join(matcher.push(character)[0] for character in text)
    assert steps == len(text)
    assert shown + matcher.flush() == text
