"""Drawing the tokens of one forward: one processing call and one race over the rows of all sessions.

Greedy rows and rows of ``delta`` sessions take the argmax. ``coupled`` rows draw with the noise that the target will
use at the same position, so that draft and target agree as often as their laws allow (verification.md section 2). Rows
of ratio kinds draw with noise of their own and keep the law they drew from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from ssd_kernels.cpu import CpuKernels
from torch import Tensor

from ssd_cluster.draft.laws import LawDraw, LawRow, LawTerms, draw
from ssd_cluster.link.messages import Open
from ssd_cluster.sampling.coupled import coupled_sample, coupled_scores, top_guesses
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import COLDEST, RowParams, process
from ssd_cluster.types import RATIO_KINDS, ProposalKind


class SessionSampling:
    """How one session draws.

    Args:
        params: law of its rows.
        noise: shared noise; None where the draw is the argmax.
        temperature: of the request, also where the draw is the argmax.
        laws: how it draws in ratio mode; None otherwise.
        output_ids: target id of each column of a reduced head; None: a column is its id.
    """

    def __init__(
        self,
        params: RowParams,
        noise: NoiseSource | None,
        temperature: float,
        output_ids: Tensor | None = None,
        laws: LawTerms | None = None,
    ) -> None:
        self.params = params
        self.noise = noise
        self.temperature = temperature
        self.laws = laws
        self._output_ids = output_ids
        self._gumbel: dict[int, Tensor] = {}

    @property
    def plain(self) -> bool:
        """Whether all of the support is kept, so that a draw needs no normalised law."""
        return self.params.truncation is None

    def exponential(self, position: int) -> Tensor:
        """E of a position at the columns of the logits, ``[V_out]``."""
        if self.noise is None:
            raise ValueError("a session without noise draws by the argmax")
        if self._output_ids is None:
            return self.noise.row(position)
        return self.noise.rows([position], self._output_ids)[0]

    def gumbel(self, position: int) -> Tensor:
        """g = -log E of a position at the columns of the logits, ``[V_out]``; kept until its token is committed."""
        row = self._gumbel.get(position)
        if row is None:
            row = self._gumbel[position] = self.exponential(position).log().neg_()
        return row

    def prefetch(self, positions: range) -> bool:
        """Draw the noise of one position that lacks it; False if none does."""
        if self.noise is None or not self.plain:
            return False
        for position in positions:
            if position not in self._gumbel:
                self.gumbel(position)
                return True
        return False

    def discard_below(self, position: int = sys.maxsize) -> None:
        """Forget the noise of positions whose tokens are committed, or all of it."""
        if self.noise is not None:
            self.noise.discard_below(position)
        for stale in [p for p in self._gumbel if p < position]:
            del self._gumbel[stale]


@dataclass(slots=True, eq=False)
class DrawRow:
    """What one row of logits is for: a drawn token (``guesses`` = 0), or guesses of what the target draws there.

    Attributes:
        sampling: whose row it is.
        position: index of the token in prompt + output.
        guesses: number of guesses wanted.
        exclude: ids that are not to be guessed.
        round_word: of the tree or chain, where the session is of a ratio kind.
        committed: the session's tokens, not copied.
    """

    sampling: SessionSampling
    position: int
    guesses: int = 0
    exclude: frozenset[int] = frozenset()
    round_word: int | None = None
    committed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Per row: the drawn id (-1 for guess rows), the guessed ids, best first (empty for drawn rows), and the law of a
    drawn id in ratio mode.
    """

    ids: list[int]
    guesses: list[list[int]]
    laws: list[LawRow | None]


SamplerFactory = Callable[..., "RowSampler"]
"""Makes the sampler of a draft; takes the arguments of ``RowSampler``."""


class RowSampler:
    """Draws for all sessions of a draft.

    Args:
        vocabulary: number of ids that the tokenizer knows; columns of other ids (padding) are ignored.
        columns: V_out.
        output_ids: target id of each column of a reduced head, ascending int64; None: a column is its id.
        device: where logits lie.
        noise_rows: cached noise rows per session.
        kernels: the model's compiled CPU kernels, or None.

    Attributes:
        output_ids: as given, less the ids that the tokenizer does not know.
        vocabulary: number of target ids that can be drawn from, or of all of them with a reduced head.
    """

    def __init__(
        self,
        vocabulary: int,
        columns: int,
        output_ids: Tensor | None,
        device: torch.device,
        noise_rows: int,
        kernels: CpuKernels | None = None,
    ) -> None:
        self._columns = min(columns, vocabulary)
        self.output_ids = None
        self._names: list[int] | None = None
        self.vocabulary = self._columns
        if output_ids is not None:
            self._columns = int((output_ids < vocabulary).sum())
            self.output_ids = output_ids[: self._columns]
            self._names = self.output_ids.tolist()
            self.vocabulary = vocabulary
        self._device = device
        self._noise_rows = noise_rows
        self._kernels = kernels

    def session(self, message: Open) -> SessionSampling:
        """Sampling state of a new session."""
        ratio = message.kind in RATIO_KINDS
        if message.temperature == 0 or not (ratio or message.kind is ProposalKind.COUPLED):
            return SessionSampling(RowParams(temperature=0.0), None, message.temperature)
        params = RowParams(temperature=message.temperature, top_k=message.top_k, top_p=message.top_p)
        if ratio:
            laws = LawTerms.of(message, self.vocabulary, self._device, self._noise_rows)
            return SessionSampling(params, None, message.temperature, self.output_ids, laws)
        # Where g is kept, E is not needed again.
        capacity = self._noise_rows if params.truncation is not None else 1
        noise = NoiseSource(message.seed, self.vocabulary, self._device, capacity=capacity, kernels=self._kernels)
        return SessionSampling(params, noise, message.temperature, self.output_ids)

    def draw(self, logits: Tensor, rows: Sequence[DrawRow]) -> Drawn:
        """Draw or guess for every row.

        Args:
            logits: float32 ``[R, V_out]``.
            rows: R rows.

        Raises:
            NumericalError: a row's logits leave nothing to draw.
        """
        drawn = Drawn([-1] * len(rows), [[] for _ in rows], [None] * len(rows))
        logits = logits[:, : self._columns]
        groups: dict[_Path, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(_path(row.sampling), []).append(index)
        for path, which in groups.items():
            draws = [i for i in which if not rows[i].guesses]
            guesses = [i for i in which if rows[i].guesses]
            # Without shared noise the likeliest tokens are the best guesses: by logits, as for greedy rows.
            scores = (_greedy, _plain, _truncated, _greedy)[path]
            race = (_greedy_draw, _plain_draw, _truncated_draw, _greedy_draw)[path]
            if draws and path is _Path.RATIO:
                self._draw_with_laws(logits, rows, draws, drawn)
            elif draws:
                for i, column in zip(draws, race(logits, rows, draws), strict=True):
                    drawn.ids[i] = column if self._names is None else self._names[column]
            if guesses:
                counts, exclude = [rows[i].guesses for i in guesses], [rows[i].exclude for i in guesses]
                best = top_guesses(scores(logits, rows, guesses), counts, exclude, self.output_ids)
                for i, found in zip(guesses, best, strict=True):
                    drawn.guesses[i] = list(found.ids)
        return drawn

    def _draw_with_laws(self, logits: Tensor, rows: Sequence[DrawRow], which: list[int], drawn: Drawn) -> None:
        probs = process(_pick(logits, which), [rows[i].sampling.params for i in which])
        for i, (token, law) in zip(
            which, draw(probs, [_law_draw(rows[i]) for i in which], self.output_ids), strict=True
        ):
            drawn.ids[i], drawn.laws[i] = token, law


def _law_draw(row: DrawRow) -> LawDraw:
    if row.sampling.laws is None or row.round_word is None:
        raise ValueError("a row of a ratio kind needs terms and a round")
    return LawDraw(row.sampling.laws, row.position, row.round_word)


class _Path(IntEnum):
    """How a row is drawn: by the argmax, by a race over the whole support or over a truncated law, or with its law."""

    GREEDY = 0
    PLAIN = 1
    TRUNCATED = 2
    RATIO = 3


def _path(sampling: SessionSampling) -> _Path:
    if sampling.laws is not None:
        return _Path.RATIO
    if sampling.noise is None:
        return _Path.GREEDY
    return _Path.PLAIN if sampling.plain else _Path.TRUNCATED


def _greedy(logits: Tensor, rows: Sequence[DrawRow], which: list[int]) -> Tensor:
    return _pick(logits, which)


def _greedy_draw(logits: Tensor, rows: Sequence[DrawRow], which: list[int]) -> list[int]:
    return _argmax(_pick(logits, which))


def _plain(logits: Tensor, rows: Sequence[DrawRow], which: list[int]) -> Tensor:
    """Scores logits / T + g: log q + g up to a constant of the row, which changes no order."""
    scores = torch.stack([rows[i].sampling.gumbel(rows[i].position) for i in which])
    warmth = torch.tensor([_inverse_temperature(rows[i]) for i in which], device=logits.device)
    return scores.addcmul_(_pick(logits, which), warmth.unsqueeze(1))


def _plain_draw(logits: Tensor, rows: Sequence[DrawRow], which: list[int]) -> list[int]:
    if logits.device.type != "cpu":
        return _argmax(_plain(logits, rows, which))
    scores = torch.empty(logits.shape[1])  # row by row: it stays in the core's cache
    winners = []
    for i in which:
        row = rows[i]
        torch.add(row.sampling.gumbel(row.position), logits[i], alpha=_inverse_temperature(row), out=scores)
        winners.append(int(scores.numpy().argmax()))
    return winners


def _inverse_temperature(row: DrawRow) -> float:
    return 1.0 / max(row.sampling.params.temperature, COLDEST)


def _truncated(logits: Tensor, rows: Sequence[DrawRow], which: list[int]) -> Tensor:
    probs = process(_pick(logits, which), [rows[i].sampling.params for i in which])
    return coupled_scores(probs, [rows[i].sampling.exponential(rows[i].position) for i in which])


def _truncated_draw(logits: Tensor, rows: Sequence[DrawRow], which: list[int]) -> list[int]:
    probs = process(_pick(logits, which), [rows[i].sampling.params for i in which])
    noise = [rows[i].sampling.exponential(rows[i].position) for i in which]
    return [int(column) for column in coupled_sample(probs, noise).tolist()]


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
