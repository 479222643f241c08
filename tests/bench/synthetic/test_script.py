"""Scripts of synthetic drafts: whose text it is, and the luck of its tokens."""

from __future__ import annotations

import itertools

import pytest
from pydantic import ValidationError

from ssd_cluster.bench.synthetic.script import Line, Reading, RecordedText, Script, ScriptFile, Scripts


def text(prompt: tuple[int, ...] = (1, 2), tokens: tuple[int, ...] = (3, 4, 5), **more: float) -> RecordedText:
    return RecordedText(**({"prompt": prompt, "tokens": tokens, "temperature": 0.0, "seed": 7} | more))


def file(*texts: RecordedText, acceptance: float = 0.8, hit: float = 0.6, seed: int = 0) -> ScriptFile:
    return ScriptFile(acceptance=acceptance, hit=hit, texts=texts, seed=seed)


def test_a_session_finds_the_texts_that_it_may_continue() -> None:
    scripts = Scripts(file(text(), text(tokens=(3, 9)), text(prompt=(1, 2, 9)), text(temperature=1.0)))
    assert [s.tokens for s in scripts.find((1, 2), 0.0, 7)] == [(1, 2, 3, 4, 5), (1, 2, 3, 9)]
    assert [s.tokens for s in scripts.find([1, 2, 3, 9], 0.0, 7)] == [(1, 2, 3, 9)], "opened again in the middle"
    assert len(scripts.find((1, 2, 9), 0.0, 7)) == len(scripts.find((1, 2), 1.0, 7)) == 1
    for tokens, temperature, seed in (
        ((1,), 0.0, 7), ((1, 2, 4), 0.0, 7), ((1, 2), 0.5, 7), ((1, 2), 0.0, 8), ((1, 2, 3, 4, 5, 6), 0.0, 7),
    ):  # fmt: skip
        assert scripts.find(tokens, temperature, seed) == []


def test_a_reading_changes_to_the_text_that_was_committed() -> None:
    scripts = Scripts(file(text(), text(tokens=(3, 9, 5, 5)))).find((1, 2), 0.0, 7)
    first, second = scripts
    committed = [1, 2]
    reading = Reading(scripts)
    assert reading.script(committed) is first
    committed.append(3)
    assert reading.script(committed) is first
    committed.append(9)
    assert reading.script(committed) is reading.script(committed) is second
    committed += [5, 8]
    assert reading.script(committed) is None
    committed.append(1)
    assert reading.script(committed) is None
    assert Reading(scripts).script([1, 2, 3, 9]) is second
    assert [first.line(2), first.line(4)] == [second.line(2), second.line(4)], "one luck for a request"


def test_lines_stand_where_their_tokens_stood() -> None:
    script = Script(text(), file())
    assert script.line(1) is None
    assert [script.line(position).token for position in (2, 3, 4)] == [3, 4, 5]  # type: ignore[union-attr]
    assert script.line(5) is None


def test_luck_is_fixed_independent_and_as_often_as_asked_for() -> None:
    long = text(tokens=tuple(range(20_000)))

    def lines_of(luck: int, **more: int) -> list[Line]:
        script = Script(long.model_copy(update=more), file(seed=luck))
        return [line for position in range(2, 20_002) if (line := script.line(position)) is not None]

    lines = lines_of(0)
    assert lines == lines_of(0)
    assert lines != lines_of(1)
    assert lines != lines_of(0, seed=8)
    drafted = sum(line.drafted for line in lines) / len(lines)
    guessed = sum(line.guessed for line in lines) / len(lines)
    both = sum(line.drafted and line.guessed for line in lines) / len(lines)
    runs = sum(a.drafted and b.drafted for a, b in itertools.pairwise(lines)) / len(lines)
    assert drafted == pytest.approx(0.8, abs=0.015)
    assert guessed == pytest.approx(0.6, abs=0.015)
    assert both == pytest.approx(0.48, abs=0.015)
    assert runs == pytest.approx(0.64, abs=0.015)
    with pytest.raises(ValidationError):
        file(text(), acceptance=1.1)
