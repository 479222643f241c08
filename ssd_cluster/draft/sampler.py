"""Drawing the tokens of one forward: one processing call and one race over the rows of all sessions.

Greedy rows and rows of ``delta`` sessions take the argmax. ``coupled`` rows draw with the noise that the target will
use at the same position, so that draft and target agree as often as their laws allow (verification.md section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_cluster.link.messages import Open
from ssd_cluster.sampling.coupled import coupled_sample, coupled_scores, top_guesses
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.types import ProposalKind


@dataclass(slots=True, eq=False)
class SessionSampling:
    """How one session draws.

    Attributes:
        params: law of its rows.
        noise: shared noise; None where the draw is the argmax.
        temperature: of the request, also where the draw is the argmax.
    """

    params: RowParams
    noise: NoiseSource | None
    temperature: float


@dataclass(slots=True, eq=False)
class DrawRow:
    """What one row of logits is for: a drawn token (``guesses`` = 0), or guesses of what the target draws there.

    Attributes:
        sampling: whose row it is.
        position: index of the token in prompt + output.
        guesses: number of guesses wanted.
        exclude: ids that are not to be guessed.
    """

    sampling: SessionSampling
    position: int
    guesses: int = 0
    exclude: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Per row: the drawn id (-1 for guess rows), and the guessed ids, best first (empty for drawn rows)."""

    ids: list[int]
    guesses: list[list[int]]


class RowSampler:
    """Draws for all sessions of a draft.

    Args:
        vocabulary: number of ids that the tokenizer knows; columns of other ids (padding) are ignored.
        columns: V_out.
        output_ids: target id of each column of a reduced head, ascending int64; None: a column is its id.
        device: where logits lie.
        noise_rows: cached noise rows per session.
    """

    def __init__(
        self, vocabulary: int, columns: int, output_ids: Tensor | None, device: torch.device, noise_rows: int
    ) -> None:
        self._columns = min(columns, vocabulary)
        self._output_ids = None
        self._names: list[int] | None = None
        self._vocabulary = self._columns
        if output_ids is not None:
            self._columns = int((output_ids < vocabulary).sum())
            self._output_ids = output_ids[: self._columns]
            self._names = self._output_ids.tolist()
            self._vocabulary = vocabulary
        self._device = device
        self._noise_rows = noise_rows

    def session(self, message: Open) -> SessionSampling:
        """Sampling state of a new session."""
        if message.kind is not ProposalKind.COUPLED or message.temperature == 0:
            return SessionSampling(RowParams(temperature=0.0), None, message.temperature)
        params = RowParams(temperature=message.temperature, top_k=message.top_k, top_p=message.top_p)
        noise = NoiseSource(message.seed, self._vocabulary, self._device, capacity=self._noise_rows)
        return SessionSampling(params, noise, message.temperature)

    def draw(self, logits: Tensor, rows: Sequence[DrawRow]) -> Drawn:
        """Draw or guess for every row.

        Args:
            logits: float32 ``[R, V_out]``.
            rows: R rows.

        Raises:
            NumericalError: a row's logits leave nothing to draw.
        """
        ids = [-1] * len(rows)
        guesses: list[list[int]] = [[] for _ in rows]
        if not rows:
            return Drawn(ids, guesses)
        logits = logits[:, : self._columns]
        coupled = [i for i, row in enumerate(rows) if row.sampling.noise is not None]
        greedy = [i for i, row in enumerate(rows) if row.sampling.noise is None]
        if greedy:
            self._greedy(logits, rows, greedy, ids, guesses)
        if coupled:
            self._coupled(logits, rows, coupled, ids, guesses)
        return Drawn(ids, guesses)

    def _greedy(
        self, logits: Tensor, rows: Sequence[DrawRow], which: list[int], ids: list[int], guesses: list[list[int]]
    ) -> None:
        drawn = [i for i in which if not rows[i].guesses]
        for i, column in zip(drawn, _argmax(_pick(logits, drawn)), strict=True):
            ids[i] = self._name(column)
        self._guess(logits, rows, [i for i in which if rows[i].guesses], guesses)

    def _coupled(
        self, logits: Tensor, rows: Sequence[DrawRow], which: list[int], ids: list[int], guesses: list[list[int]]
    ) -> None:
        drawn = [i for i in which if not rows[i].guesses]
        guessed = [i for i in which if rows[i].guesses]
        order = drawn + guessed
        probs = process(_pick(logits, order), [rows[i].sampling.params for i in order])
        noise = [self._noise(rows[i]) for i in order]
        n = len(drawn)
        for i, column in zip(drawn, coupled_sample(probs[:n], noise[:n]).tolist(), strict=True):
            ids[i] = self._name(column)
        if guessed:
            scores = coupled_scores(probs[n:], noise[n:])
            self._guess(scores, [rows[i] for i in guessed], list(range(len(guessed))), guesses, guessed)

    def _guess(
        self,
        scores: Tensor,
        rows: Sequence[DrawRow],
        which: list[int],
        guesses: list[list[int]],
        places: list[int] | None = None,
    ) -> None:
        """Best ids of some rows of ``scores``; row ``which[j]`` is stored at ``places[j]``."""
        if not which:
            return
        counts, exclude = [rows[i].guesses for i in which], [rows[i].exclude for i in which]
        best = top_guesses(_pick(scores, which), counts, exclude, self._output_ids)
        for place, found in zip(places or which, best, strict=True):
            guesses[place] = list(found.ids)

    def _noise(self, row: DrawRow) -> Tensor:
        noise = row.sampling.noise
        if noise is None:
            raise ValueError("a row without noise is drawn by its argmax")
        if self._output_ids is None:
            return noise.row(row.position)
        return noise.rows([row.position], self._output_ids)[0]

    def _name(self, column: int) -> int:
        return column if self._names is None else self._names[column]


def _pick(values: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a matrix, ascending or not; a view where they are all rows in order or one run."""
    if not rows:
        return values[:0]
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return values[rows[0] : rows[0] + len(rows)]
    return values[torch.tensor(rows, device=values.device)]


def _argmax(logits: Tensor) -> list[int]:
    """Column of the largest value of each row, the lowest among equals."""
    if logits.device.type == "cpu":  # torch's argmax is many times slower than NumPy's there
        return [int(row.numpy().argmax()) for row in logits.unbind(0)]
    return [int(column) for column in logits.argmax(dim=-1).tolist()]
