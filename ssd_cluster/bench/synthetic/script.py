"""Recorded texts, and which of their tokens the synthetic draft gets right.

What is right is decided once per position of a text, not per draw: all modes, repetitions and branches then have the
same luck, and every tested token is kept with the given probability, independently of the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from ssd_cluster.config import Settings


class RecordedText(Settings):
    """What plain decoding said. ``seed``: of the choice, as a session is opened with it."""

    prompt: tuple[int, ...] = Field(min_length=1)
    tokens: tuple[int, ...]
    temperature: float
    seed: int


class ScriptFile(Settings):
    """All texts, and how good the draft is to be.

    ``acceptance``: probability that a drafted token is the recorded one. ``hit``: probability that the recorded token
    is the first guess of t*; otherwise it is no guess at all. ``seed``: of the luck.
    """

    acceptance: float = Field(ge=0, le=1)
    hit: float = Field(ge=0, le=1)
    texts: tuple[RecordedText, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A position of a text: its true token, whether it is drafted, and whether it is guessed."""

    token: int
    drafted: bool
    guessed: bool


class Script:
    """One text with its luck."""

    def __init__(self, text: RecordedText, file: ScriptFile, number: int) -> None:
        rng = random.Random(f"{file.seed} {number}")
        self._start = len(text.prompt)
        self._lines = [Line(token, rng.random() < file.acceptance, rng.random() < file.hit) for token in text.tokens]
        self._all = (*text.prompt, *text.tokens)

    def line(self, position: int) -> Line | None:
        """Position in prompt + output; None outside of what was recorded."""
        index = position - self._start
        return self._lines[index] if 0 <= index < len(self._lines) else None

    def starts_with(self, tokens: Sequence[int]) -> bool:
        """Whether a session with these committed tokens may be this text: it holds its prompt, and nothing else."""
        return len(tokens) >= self._start and tuple(tokens) == self._all[: len(tokens)]


class Scripts:
    """All recorded texts.

    Args:
        file: of them.
    """

    def __init__(self, file: ScriptFile) -> None:
        self._by_request: dict[tuple[float, int], list[Script]] = {}
        for number, text in enumerate(file.texts):
            self._by_request.setdefault((text.temperature, text.seed), []).append(Script(text, file, number))

    @classmethod
    def read(cls, path: Path) -> Scripts:
        """Scripts from the JSON file of a ``ScriptFile``."""
        return cls(ScriptFile.model_validate_json(path.read_text(encoding="utf-8")))

    def find(self, tokens: Sequence[int], temperature: float, seed: int) -> Script | None:
        """The text that a session with these tokens continues; None if it was not recorded."""
        known = self._by_request.get((temperature, seed), ())
        return next((script for script in known if script.starts_with(tokens)), None)
