"""The laws q that a proposal's tokens were drawn from: sparse (a draft's own top m, renormalised) or dense rows.

Shapes: n proposed tokens, m stored ids per row, V ids. The rules ask a law four things: the probability of the drafted
tokens, the mass S_t = sum (rho_t P_t - Q_t)+, a residual row, and a dense copy. A sparse law answers from its m
entries; a dense one walks over blocks of the vocabulary, so that no ``[n, V]`` product is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SUM_TOLERANCE = 1e-3
"""How far from 1 the sum of a row that came from a peer may lie."""

BLOCK_VALUES = 1 << 16
"""Values of the scratch buffer of a walk over the vocabulary: 256 KB stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class SparseLaw:
    """Rows given by their non-zero entries.

    Attributes:
        ids: int64 ``[n, m]``, unique within a row; padding entries hold any id.
        probabilities: float32 ``[n, m]``; padding entries hold 0.
    """

    ids: Tensor
    probabilities: Tensor

    @classmethod
    def validated(cls, ids: Tensor, probabilities: Tensor, vocabulary: int) -> SparseLaw:
        """A law from a peer, checked; rows are divided by their sums, since a race draws from q / sum(q).

        Raises:
            ValueError: shapes or types differ from the above, a value is negative or not finite, a sum is not within
                1e-3 of 1, an id is outside the vocabulary or twice in a row.
        """
        if ids.dim() != 2 or ids.shape != probabilities.shape or ids.dtype != torch.int64:
            raise ValueError(
                f"sparse law needs int64 ids and probabilities of one shape [n, m], got {tuple(ids.shape)} "
                f"{ids.dtype} and {tuple(probabilities.shape)}"
            )
        probabilities = _checked_rows(probabilities)
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
            raise ValueError(f"sparse law holds an id outside [0, {vocabulary})")
        # Padding entries become distinct negative ids: only real entries can collide.
        spare = -1 - torch.arange(ids.shape[1], device=ids.device)
        ordered = torch.where(probabilities > 0, ids, spare).sort(dim=-1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            raise ValueError("sparse law holds an id twice in a row")
        return cls(ids, probabilities)

    @classmethod
    def point_mass(cls, tokens: Tensor) -> SparseLaw:
        """One-hot rows at ``tokens`` ``[n]``: the law of tokens of which nothing else is known."""
        ids = tokens.unsqueeze(1)
        return cls(ids, torch.ones(ids.shape, device=ids.device))

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.ids.shape[0]

    def head(self, n: int) -> SparseLaw:
        """The first ``n`` rows."""
        return SparseLaw(self.ids[:n], self.probabilities[:n])

    def row(self, t: int) -> SparseLaw:
        """Row ``t`` alone, n = 1."""
        return SparseLaw(self.ids[t : t + 1], self.probabilities[t : t + 1])

    def tail(self, n: int) -> SparseLaw:
        """The rows behind the first ``n``."""
        return SparseLaw(self.ids[n:], self.probabilities[n:])

    def without(self, tokens: list[int]) -> SparseLaw:
        """The law with row 0 renormalised without ``tokens``: what a later sibling was drawn from."""
        return SparseLaw(self.ids, _without(self.probabilities, torch.isin(self.ids[0], self.ids.new_tensor(tokens))))

    def probability_of(self, tokens: Tensor) -> Tensor:
        """float32 ``[n]``: row t's probability of ``tokens[t]``; 0 for ids that the row does not list."""
        hits = self.ids == tokens.to(self.ids.device).unsqueeze(1)
        return torch.where(hits, self.probabilities, 0.0).sum(dim=-1)

    def dense(self, vocabulary: int) -> Tensor:
        """float32 ``[n, V]``."""
        rows = torch.zeros(self.n, vocabulary, device=self.probabilities.device)
        return rows.scatter_add_(1, self.ids, self.probabilities)

    def excess(self, rho: Tensor, rows: Tensor) -> Tensor:
        """S_t = sum_y (rho_t P_t(y) - Q_t(y))+, float64 ``[n]``; ``rho`` ``[n]``, ``rows`` P ``[n, V]``.

        Equal to rho_t - sum_y min(rho_t P_t(y), Q_t(y)), whose sum runs over the entries of Q only.
        """
        scaled = rows.gather(1, self.ids).double() * rho.unsqueeze(1)
        shared = torch.minimum(scaled, self.probabilities.double()).sum(dim=-1)
        return (rho - shared).clamp_(min=0.0)

    def residual(self, t: int, rho: float, row: Tensor) -> Tensor:
        """(rho P_t - Q_t)+, not normalised, float32 ``[V]``; ``row`` is P_t ``[V]``."""
        return (row * rho).index_add_(0, self.ids[t], self.probabilities[t], alpha=-1).clamp_(min=0.0)


@dataclass(frozen=True, slots=True)
class DenseLaw:
    """Full rows.

    Attributes:
        rows: float32 ``[n, V]``.
    """

    rows: Tensor

    @classmethod
    def validated(cls, rows: Tensor, vocabulary: int) -> DenseLaw:
        """A law from a peer, checked; rows are divided by their sums.

        Raises:
            ValueError: not ``[n, V]``, a value is negative or not finite, or a sum is not within 1e-3 of 1.
        """
        if rows.dim() != 2 or rows.shape[1] != vocabulary:
            raise ValueError(f"dense law needs rows [n, {vocabulary}], got {tuple(rows.shape)}")
        return cls(_checked_rows(rows))

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    def head(self, n: int) -> DenseLaw:
        """The first ``n`` rows."""
        return DenseLaw(self.rows[:n])

    def row(self, t: int) -> DenseLaw:
        """Row ``t`` alone, n = 1."""
        return DenseLaw(self.rows[t : t + 1])

    def tail(self, n: int) -> DenseLaw:
        """The rows behind the first ``n``."""
        return DenseLaw(self.rows[n:])

    def without(self, tokens: list[int]) -> DenseLaw:
        """As :meth:`SparseLaw.without`."""
        excluded = torch.zeros(self.rows.shape[1], dtype=torch.bool, device=self.rows.device)
        excluded[tokens] = True
        return DenseLaw(_without(self.rows, excluded))

    def probability_of(self, tokens: Tensor) -> Tensor:
        """float32 ``[n]``: row t's probability of ``tokens[t]``; 0 for ids outside the row."""
        tokens = tokens.to(self.rows.device)
        inside = (tokens >= 0) & (tokens < self.rows.shape[1])
        found = self.rows.gather(1, torch.where(inside, tokens, 0).unsqueeze(1)).squeeze(1)
        return torch.where(inside, found, 0.0)

    def dense(self, vocabulary: int) -> Tensor:
        """float32 ``[n, V]``, the rows themselves.

        Raises:
            ValueError: the rows have another length.
        """
        if self.rows.shape[1] != vocabulary:
            raise ValueError(f"rows of q have {self.rows.shape[1]} ids, those of p {vocabulary}")
        return self.rows

    def excess(self, rho: Tensor, rows: Tensor) -> Tensor:
        """As :meth:`SparseLaw.excess`."""
        return positive_mass(rho.unsqueeze(0), rows.unsqueeze(0), self.dense(rows.shape[1]).unsqueeze(0))[0]

    def residual(self, t: int, rho: float, row: Tensor) -> Tensor:
        """As :meth:`SparseLaw.residual`."""
        return torch.mul(row, rho).sub_(self.rows[t]).clamp_(min=0.0)


DraftLaw = SparseLaw | DenseLaw


def positive_mass(rho: Tensor, P: Tensor, Q: Tensor) -> Tensor:
    """S = sum_y (rho P(y) - Q(y))+ of many rows, summed over blocks of the vocabulary.

    Args:
        rho: ``[B, g]``.
        P, Q: float32 ``[B, g, V]``.

    Returns:
        float64 ``[B, g]``.
    """
    total = torch.zeros(rho.shape, dtype=torch.float64, device=P.device)
    n_rows, vocabulary = rho.numel(), P.shape[-1]
    if n_rows == 0:
        return total
    width = max(1, min(vocabulary, BLOCK_VALUES // n_rows)) if P.device.type == "cpu" else vocabulary
    scale = rho.to(P.dtype).unsqueeze(-1)
    scratch = torch.empty(*rho.shape, width, dtype=P.dtype, device=P.device)
    for start in range(0, vocabulary, width):
        stop = min(start + width, vocabulary)
        block = scratch[..., : stop - start]
        torch.mul(P[..., start:stop], scale, out=block)
        total += block.sub_(Q[..., start:stop]).clamp_(min=0.0).sum(dim=-1)
    return total


def _without(probabilities: Tensor, excluded: Tensor) -> Tensor:
    """``[n, k]`` probabilities with row 0 renormalised without the ``excluded`` ``[k]`` entries; others unchanged."""
    if not bool(excluded.any()):
        return probabilities
    rows = probabilities.clone()
    rows[0].masked_fill_(excluded, 0.0)
    rows[0].div_(rows[0].sum())
    return rows


def _checked_rows(probabilities: Tensor) -> Tensor:
    """float32 rows with sum 1 of ``[n, k]`` values from a peer; ValueError says what is wrong with them."""
    if not probabilities.is_floating_point():
        raise ValueError(f"probabilities must be floating point, got {probabilities.dtype}")
    values = probabilities.to(torch.float32)
    sums = values.sum(dim=-1, keepdim=True)
    if not bool(sums.isfinite().all()):
        raise ValueError("a law holds values that are not finite")
    if values.numel() and float(values.min()) < 0:
        raise ValueError("a law holds negative probabilities")
    off = (sums - 1).abs()
    if sums.numel() and float(off.max()) > SUM_TOLERANCE:
        worst = int(off.argmax())
        raise ValueError(f"row {worst} of a law sums to {float(sums[worst]):.6f}, not to 1")
    return values / sums
