"""Randomness of the ratio rules: draft draws, accept uniforms, residual draws (verification.md section 3).

Under these rules a position may be drawn more than once: the uniforms and the draft's draws behind the place where a
round stopped have already decided where it stopped. Used again when the position is drafted again, they bias the text.
So every stream carries a round word beside the position: counter = (token id >> 2, position, domain, round), and no
(position, round) of one choice is used twice. Nothing here is shared between target and draft: the target's key is
derived from a secret of its own, the draft's draws come from the seed in another domain than the coupled noise.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import torch
from ssd_kernels.cpu import CpuKernels
from ssd_kernels.philox import Backend, exponential_noise, philox4x32, uniform_noise, words_to_exponential
from torch import Tensor

from ssd_cluster.sampling.params import SEED_MASK

DRAFT_DOMAIN = 1
"""Counter domain of the draft's own draws."""
ACCEPT_DOMAIN = 2
"""Counter domain of the accept uniforms; target only."""
RESIDUAL_DOMAIN = 3
"""Counter domain of residual and bonus draws; target only."""


def ratio_key(secret: int, seed: int) -> int:
    """The 64-bit key of a choice's accept uniforms and residual draws; never leaves the target.

    Args:
        secret: 0 to 2**128 - 1, drawn once per target process.
        seed: the choice's seed, taken mod 2**64.

    Raises:
        OverflowError: ``secret`` is out of range.
    """
    seed_bytes = (seed & SEED_MASK).to_bytes(8, "little")
    digest = hashlib.blake2b(seed_bytes, digest_size=8, key=secret.to_bytes(16, "little"), person=b"ssd ratio key")
    return int.from_bytes(digest.digest(), "little")


class RoundDraws:
    """What one verification of one choice draws under a ratio rule; rows are drawn once and kept.

    Args:
        key: :func:`ratio_key` of the choice.
        round_word: number of this verification within the choice, in [0, 2**32); larger than every one used before.
        base: position of the round's first token: its index in prompt + output.
        vocabulary: V, the target's token ids, padding included.
        device: where rows lie.
        kernels: compiled functions that draw the rows on a CPU; None: NumPy.
    """

    def __init__(
        self,
        key: int,
        round_word: int,
        base: int,
        vocabulary: int,
        device: torch.device | str = "cpu",
        kernels: CpuKernels | None = None,
    ) -> None:
        self.key = key
        self.round_word = round_word
        self.base = base
        self.vocabulary = vocabulary
        self.device = torch.device(device)
        self._kernels = kernels
        self._accept: dict[int, Tensor] = {}
        self._residual: dict[int, Tensor] = {}

    def prefetch(self, n: int) -> None:
        """Draw ahead what a chain of at most ``n`` tokens needs, before the target's rows are there."""
        self.accept(n)
        self.residual(self.base)

    def accept(self, n: int, draft: int = 0) -> Tensor:
        """Uniforms in (0, 1) of positions base to base + n - 1, float32 ``[n]``; entry t decides on proposed token t.

        ``draft``: which of several drafts of the round they are for.
        """
        found = self._accept.get(draft)
        if found is None or len(found) < n:
            positions, rounds = range(self.base, self.base + n), (self.round_word,) * n
            found = uniform_noise(
                self.key, positions, domain=ACCEPT_DOMAIN, rounds=rounds, index=draft, device=self.device
            )
            self._accept[draft] = found
        return found[:n]

    def residual(self, position: int) -> Tensor:
        """E, float32 ``[V]``, of a residual or bonus draw. The tensor is kept: do not write to it.

        A rule for chains draws one token per round and takes the row of ``base`` whatever length is kept: the row is
        independent of all that decides the length, and is the only one that has to be drawn ahead.
        """
        found = self._residual.get(position)
        if found is None:
            found = self._residual[position] = self._draw(position)
        return found

    def _draw(self, position: int) -> Tensor:
        if self._kernels is not None:
            return self._kernels.exponential(self.key, position, self.vocabulary, RESIDUAL_DOMAIN, self.round_word)
        rounds = [self.round_word]
        rows = exponential_noise(
            [self.key], [position], self.vocabulary, domain=RESIDUAL_DOMAIN, rounds=rounds, device=self.device
        )
        return rows[0]


class DraftDraws:
    """What the draft draws for one choice in ratio mode, by position and round.

    Branches of one round share the row of a position: at most one of them is ever proposed.

    Args:
        seed: the choice's seed, taken mod 2**64.
        vocabulary: V, the target's token ids.
        device: where rows lie.
        capacity: largest number of cached rows, 4 V bytes each; the least recently used goes first.

    Raises:
        ValueError: ``capacity`` is below 1.
    """

    def __init__(self, seed: int, vocabulary: int, device: torch.device | str = "cpu", *, capacity: int = 32) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.seed = seed
        self.vocabulary = vocabulary
        self.device = torch.device(device)
        self.capacity = capacity
        self._rows: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def row(self, position: int, round_word: int) -> Tensor:
        """E, float32 ``[V]``: ``argmin E / q`` draws from q. The tensor is shared with the cache: do not write to it.

        Args:
            position: index of the token being drawn in prompt + output, in [0, 2**32).
            round_word: in [0, 2**32); larger than every one whose draws at this position the target may have verified.
        """
        key = (position, round_word)
        found = self._rows.get(key)
        if found is None:
            found = exponential_noise(
                [self.seed],
                [position],
                self.vocabulary,
                domain=DRAFT_DOMAIN,
                rounds=[round_word],
                device=self.device,
            )[0]
            self._rows[key] = found
            if len(self._rows) > self.capacity:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return found


def draft_noise_at(draws: Sequence[DraftDraws], positions: Sequence[int], rounds: Sequence[int], ids: Tensor) -> Tensor:
    """``draws[i].row(positions[i], rounds[i])`` at a few ids of each row, without the rest of the rows; on the CPU.

    Args:
        draws, positions, rounds: n of each, as for :meth:`DraftDraws.row`.
        ids: int64 ``[n, m]``.

    Returns:
        float32 ``[n, m]``.
    """
    n, m = ids.shape
    words = torch.tensor(
        [
            (position, DRAFT_DOMAIN, round_word, one.seed & 0xFFFFFFFF, one.seed >> 32 & 0xFFFFFFFF)
            for one, position, round_word in zip(draws, positions, rounds, strict=True)
        ],
        dtype=torch.int64,
    ).reshape(n, 1, 5)
    blocks = torch.cat([(ids >> 2).unsqueeze(-1), words.expand(n, m, 5)], dim=-1).reshape(n * m, 6)
    drawn = philox4x32(blocks[:, :4], blocks[:, 4:], backend=Backend.NUMPY)
    return words_to_exponential(drawn.gather(1, (ids & 3).reshape(n * m, 1))).reshape(n, m)
