"""Recorded texts, and which of their tokens the synthetic draft gets right.

What is right is decided once per position of a request's text, not per draw: all modes, repetitions and branches then
have the same luck, and every tested token is kept with the given probability, independently of the others. A request
may have several texts, for in bfloat16 a near tie can turn out otherwise in a forward over other rows.
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
    """One text with its luck, which all texts of a request share."""

    def __init__(self, text: RecordedText, file: ScriptFile) -> None:
        rng = random.Random(f"{file.seed} {text.temperature} {text.seed} {text.prompt}")
        self._start = len(text.prompt)
        self._lines = [Line(token, rng.random() < file.acceptance, rng.random() < file.hit) for token in text.tokens]
        self.tokens = (*text.prompt, *text.tokens)

    def line(self, position: int) -> Line | None:
        """Position in prompt + output; None outside of what was recorded."""
        index = position - self._start
        return self._lines[index] if 0 <= index < len(self._lines) else None

    def starts_with(self, tokens: Sequence[int]) -> bool:
        """Whether these committed tokens may be this text: they hold its prompt, and nothing else."""
        return len(tokens) >= self._start and tuple(tokens) == self.tokens[: len(tokens)]


class Reading:
    """Follows a session through the texts that its request may have.

    Args:
        scripts: candidates, the likelier first.
    """

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = scripts
        self._current: Script | None = None
        self._checked = -1

    def script(self, committed: Sequence[int]) -> Script | None:
        """The text that begins with the committed tokens, which only grow; None if none does any more."""
        n, before = len(committed), self._checked
        if n == before:
            return self._current
        self._checked = n
        now = self._current
        if now is None or before < 0 or tuple(committed[before:]) != now.tokens[before:n]:
            self._current = next((script for script in self._scripts if script.starts_with(committed)), None)
        return self._current


class Scripts:
    """All recorded texts.

    Args:
        file: of them.
    """

    def __init__(self, file: ScriptFile) -> None:
        self._by_request: dict[tuple[float, int], list[Script]] = {}
        for text in file.texts:
            self._by_request.setdefault((text.temperature, text.seed), []).append(Script(text, file))

    @classmethod
    def read(cls, path: Path) -> Scripts:
        """Scripts from the JSON file of a ``ScriptFile``."""
        return cls(ScriptFile.model_validate_json(path.read_text(encoding="utf-8")))

    def find(self, tokens: Sequence[int], temperature: float, seed: int) -> list[Script]:
        """The texts that a session with these tokens may continue."""
        return [script for script in self._by_request.get((temperature, seed), ()) if script.starts_with(tokens)]
