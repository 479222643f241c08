"""Coupled sampling: tokens drawn by an exponential race whose noise target and draft share (verification.md section 2).

``argmin_v E(v) / p(v)`` draws from p; it is ``argmax_v [log p(v) + g(v)]`` with g = -log E. A noise row of None stands
for g = 0: greedy rows. Shapes: R rows, V ids (columns of a reduced head in a draft).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ssd_kernels.cpu import CpuKernels
from ssd_kernels.verification import token_verify
from torch import Tensor

from ssd_cluster.errors import NumericalError
from ssd_cluster.sampling.selection import largest, ordered

NoiseRows = Tensor | Sequence[Tensor | None]
"""E of R rows: float32 ``[R, V]``, or R entries, each ``[V]`` or None where g = 0 (a greedy row)."""


def coupled_sample(probs: Tensor, noise: NoiseRows) -> Tensor:
    """One id per row: the winner of the race E / p. Equal quotients: lowest id. Ids with p = 0 never win.

    Args:
        probs: float32 ``[R, V]``, rows of :func:`ssd_cluster.sampling.processors.process`.
        noise: E of the rows, at the ids of the columns.

    Returns:
        int64 ``[R]`` column indices, on the device of ``probs``.

    Raises:
        ValueError: ``noise`` has not R rows.
        NumericalError: a row has no id with positive probability (NaN logits, everything banned).
    """
    _check_rows(probs, noise)
    if probs.device.type != "cpu":
        return _sample_on_device(probs, _stacked(probs, noise))
    return torch.tensor([winner(law, noise[i]) for i, law in enumerate(probs.unbind(0))], dtype=torch.int64)


def winner(law: Tensor, noise: Tensor | None, kernels: CpuKernels | None = None) -> int:
    """The token of one row on a CPU, as :func:`coupled_sample` draws it: law and noise float32 ``[V]``, contiguous.

    Raises:
        NumericalError: no id has a positive probability.
    """
    if noise is None:
        best = highest(law, kernels)
        good = float(law[best]) > 0
    elif kernels is not None:
        best = kernels.race(noise, law)
        good = best >= 0
    else:
        quotients = (noise / law).numpy()
        best = int(quotients.argmin())
        good = math.isfinite(quotients[best])
    if not good:
        raise NumericalError("a row has no token with positive probability")
    return best


def highest(row: Tensor, kernels: CpuKernels | None = None) -> int:
    """argmax of one row of a CPU, float32 ``[V]``, contiguous; of equal numbers the lowest id.

    Raises:
        NumericalError: a number is NaN, or the largest is not finite.
    """
    if kernels is not None:
        best = kernels.largest(row)
    else:
        values = row.numpy()  # torch's argmax is many times slower
        best = int(values.argmax())
        best = best if math.isfinite(values[best]) else -1
    if best < 0:
        raise NumericalError("a row has no token with positive probability")
    return best


def _sample_on_device(probs: Tensor, noise: Tensor) -> Tensor:
    """The race in one pass over both: a verification kernel without drafted tokens is just that.

    ``ssd_kernels.coupled`` draws the noise as well; here it is there already, drawn off the hit path.
    """
    n_rows, vocabulary = probs.shape
    nothing = probs.new_empty(n_rows, 0)
    x, n = nothing.long(), torch.zeros(n_rows, dtype=torch.int64, device=probs.device)
    _, winners = token_verify(probs.unsqueeze(1), probs.new_empty(n_rows, 0, vocabulary), x, n, nothing, noise)
    if n_rows and int(winners.min()) < 0:
        raise NumericalError("a row has no token with positive probability")
    return winners


def coupled_scores(probs: Tensor, noise: NoiseRows) -> Tensor:
    """log p + g, float32 ``[R, V]``; -inf where p = 0. Arguments and errors as for :func:`coupled_sample`."""
    _check_rows(probs, noise)
    return (probs / _stacked(probs, noise)).log_()


def tie_gap(probs: Tensor, noise: NoiseRows) -> Tensor:
    """Difference of the two best scores of each row, float32 ``[R]``; inf where only one id can be drawn.

    Says whether a differing token sits at a near tie. For greedy rows pass the softmax of the logits at temperature 1
    and None: the gap is then the difference of the two best logits.
    """
    if probs.shape[1] < 2:
        return torch.full((probs.shape[0],), math.inf, device=probs.device)
    best = coupled_scores(probs, noise).topk(2, dim=-1).values
    return best[:, 0] - best[:, 1]


@dataclass(frozen=True, slots=True)
class Guesses:
    """Likely next tokens of one row, best first: target ids and their scores."""

    ids: tuple[int, ...]
    scores: tuple[float, ...]


def top_guesses(
    scores: Tensor,
    counts: int | Sequence[int],
    exclude: Sequence[Collection[int]],
    output_ids: Tensor | None = None,
) -> list[Guesses]:
    """The best ids of each row that a draft expects to come next.

    Args:
        scores: float32 ``[R, V_out]``, not NaN: :func:`coupled_scores` where the target draws with shared noise, log q
            where it does not, logits for greedy rows. Columns at -inf are never guessed.
        counts: number of guesses, for all rows or for each.
        exclude: for each row the target ids not to guess (the rejected draft token, tokens that end the output).
        output_ids: int64 ``[V_out]``, ascending: target id of each column of a reduced head; None: the column.

    Returns:
        R guesses, best first, equal scores by lowest column; fewer than asked where columns run out.

    Raises:
        ValueError: ``counts`` or ``exclude`` has not R entries.
    """
    n_rows = scores.shape[0]
    counts = [counts] * n_rows if isinstance(counts, int) else counts
    if len(counts) != n_rows or len(exclude) != n_rows:
        raise ValueError(f"{n_rows} rows of scores, {len(counts)} counts, {len(exclude)} exclusions")
    values = scores.detach().to("cpu", torch.float32).numpy()
    ids = None if output_ids is None else output_ids.cpu().numpy()
    guesses = []
    for row, count, excluded in zip(values, counts, exclude, strict=True):
        best = ordered(row, largest(row, count + len(excluded)))
        best = best[row[best] > -np.inf]
        named = best if ids is None else ids[best]
        kept = [(int(t), float(row[c])) for t, c in zip(named, best, strict=True) if t not in excluded][:count]
        guesses.append(Guesses(tuple(t for t, _ in kept), tuple(s for _, s in kept)))
    return guesses


def _check_rows(probs: Tensor, noise: NoiseRows) -> None:
    if len(noise) != probs.shape[0]:
        raise ValueError(f"{len(noise)} rows of noise for {probs.shape[0]} rows of probabilities")


def _stacked(probs: Tensor, noise: NoiseRows) -> Tensor:
    """E as one ``[R, V]`` tensor; E = 1 for g = 0."""
    if isinstance(noise, Tensor):
        return noise
    if not noise:
        return torch.empty_like(probs)
    ones = torch.ones(probs.shape[1], device=probs.device)
    return torch.stack([ones if row is None else row for row in noise])
