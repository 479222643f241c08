"""Noise rows of one sequence: a pure function of (seed, position, token id), drawn off the hit path and cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from ssd_kernels.cpu import CpuKernels
from ssd_kernels.philox import exponential_noise
from torch import Tensor

EQUALITY_DOMAIN = 0
"""Counter domain of the equality rule's noise, the only one that a draft may use."""


class NoiseSource:
    """Exponential noise E of one choice, by position (verification.md section 2).

    The row of a position serves every branch that may reach it, in the target and in the draft. Greedy choices need
    no source. Not thread-safe: target and draft each have their own, and get the same rows.

    Args:
        seed: the choice's seed, taken mod 2**64.
        vocabulary: V, number of the target's token ids, padding included.
        device: where rows lie.
        capacity: largest number of cached rows, 4 V bytes each; the least recently used goes first. At least the
            rows of one round: 2 K + 2 for a chain of K tokens and the tree behind it.
        kernels: compiled functions that draw the rows on a CPU; None: NumPy. The two differ by rounding.

    Raises:
        ValueError: ``capacity`` is below 1.
    """

    def __init__(
        self,
        seed: int,
        vocabulary: int,
        device: torch.device | str = "cpu",
        *,
        capacity: int = 32,
        kernels: CpuKernels | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.seed = seed
        self.vocabulary = vocabulary
        self.device = torch.device(device)
        self.capacity = capacity
        self._kernels = kernels
        self._rows: OrderedDict[int, Tensor] = OrderedDict()

    def __len__(self) -> int:
        """Number of cached rows."""
        return len(self._rows)

    def __contains__(self, position: int) -> bool:
        """Whether the row of a position is cached."""
        return position in self._rows

    def row(self, position: int) -> Tensor:
        """E of one position, float32 ``[V]``. The tensor is shared with the cache: do not write to it.

        ``position``: index of the token being drawn in prompt + output, from 0; in [0, 2**32).
        """
        found = self._rows.get(position)
        if found is None:
            found = self._draw([position])[0]
            self._keep(position, found)
        else:
            self._rows.move_to_end(position)
        return found

    def rows(self, positions: Sequence[int], ids: Tensor | None = None) -> Tensor:
        """E of several positions, float32 ``[N, V]``, or ``[N, len(ids)]`` at the given ids.

        Args:
            positions: N positions, in any order, repeats allowed.
            ids: int64 ``[V_out]`` target ids of a reduced head's columns; noise belongs to target ids.
        """
        if not positions:
            return torch.empty(0, self.vocabulary if ids is None else len(ids), device=self.device)
        drawn = self._missing(positions)
        found = {p: drawn[p] if p in drawn else self._rows[p] for p in positions}
        for position, row in found.items():
            self._keep(position, row)
        rows = [found[p] for p in positions]
        return torch.stack([row if ids is None else row.index_select(0, ids) for row in rows])

    def prefetch(self, positions: Iterable[int]) -> None:
        """Draw the rows that are not cached yet; positions beyond ``capacity`` of them are left out."""
        for position, row in self._missing(list(positions)[: self.capacity]).items():
            self._keep(position, row)

    def draw_missing(self, positions: Iterable[int]) -> bool:
        """Draw the first row among ``positions`` that is not cached yet; False if there is none, or no room for it."""
        missing = next((p for p in positions if p not in self._rows), None)
        if missing is None or len(self._rows) >= self.capacity:
            return False
        self.prefetch([missing])
        return True

    def discard_below(self, position: int) -> None:
        """Forget the rows of positions before ``position``: their tokens are committed."""
        for stale in [p for p in self._rows if p < position]:
            del self._rows[stale]

    def _missing(self, positions: Iterable[int]) -> dict[int, Tensor]:
        wanted = [p for p in dict.fromkeys(positions) if p not in self._rows]
        return dict(zip(wanted, self._draw(wanted), strict=True))

    def _draw(self, positions: list[int]) -> list[Tensor]:
        if self._kernels is not None:
            return [self._kernels.exponential(self.seed, p, self.vocabulary, EQUALITY_DOMAIN) for p in positions]
        # On a CPU one row fills a core's cache and rows in one buffer would keep each other alive; on a GPU one launch
        # is cheaper than several.
        batches = [[p] for p in positions] if self.device.type == "cpu" else [positions] if positions else []
        drawn: list[Tensor] = []
        for batch in batches:
            seeds = [self.seed] * len(batch)
            noise = exponential_noise(seeds, batch, self.vocabulary, domain=EQUALITY_DOMAIN, device=self.device)
            drawn.extend(noise.unbind(0))
        return drawn

    def _keep(self, position: int, row: Tensor) -> None:
        self._rows[position] = row
        self._rows.move_to_end(position)
        if len(self._rows) > self.capacity:
            self._rows.popitem(last=False)
