"""Draws as a draft does, and then says what the script says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ssd_cluster.bench.synthetic.script import Line, Reading, Scripts
from ssd_cluster.draft.sampler import Drawn, DrawRow, RowSampler, SessionSampling
from ssd_cluster.link.messages import Open
from ssd_cluster.types import RATIO_KINDS


class SyntheticSampler(RowSampler):
    """A sampler whose every real draw is made, timed, and replaced. Sessions that were not recorded draw as ever.

    Args:
        scripts: what is true.
        arguments: of ``RowSampler``.
    """

    def __init__(self, scripts: Scripts, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._scripts = scripts
        self._of: WeakKeyDictionary[SessionSampling, Reading] = WeakKeyDictionary()

    def session(self, message: Open) -> SessionSampling:
        """See ``RowSampler``.

        Raises:
            ValueError: a ratio kind, whose laws nobody could write a script for.
        """
        if message.kind in RATIO_KINDS:
            raise ValueError("synthetic acceptance is for kind coupled")
        sampling = super().session(message)
        found = self._scripts.find(message.tokens, message.temperature, message.seed)
        if found:
            self._of[sampling] = Reading(found)
        return sampling

    def draw(self, logits: Tensor, rows: Sequence[DrawRow]) -> Drawn:
        """See ``RowSampler``."""
        drawn = super().draw(logits, rows)
        for index, row in enumerate(rows):
            reading = self._of.get(row.sampling)
            script = reading.script(row.committed) if reading is not None else None
            line = script.line(row.position) if script is not None else None
            if line is None:
                continue
            if row.guesses:
                drawn.guesses[index] = guessed(line, drawn.guesses[index], row)
            elif line.drafted:
                drawn.ids[index] = line.token
            elif drawn.ids[index] == line.token:
                drawn.ids[index] = self._second(logits[index], line.token)
        return drawn

    def _second(self, logits: Tensor, best: int) -> int:
        """The likeliest id but ``best``."""
        ids = torch.topk(logits[: self._columns], 2).indices.tolist()
        names = ids if self._names is None else [self._names[column] for column in ids]
        return int(next(name for name in names if name != best))


def guessed(line: Line, guesses: list[int], row: DrawRow) -> list[int]:
    """The guesses with the true token first, or without it; one that is excluded stays so."""
    others = [one for one in guesses if one != line.token]
    if line.guessed and line.token not in row.exclude:
        return [line.token, *others][: row.guesses]
    return others
