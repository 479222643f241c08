"""Functional API: checks arguments, picks a backend, returns torch tensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

from ssd_kernels.philox import host, reference
from ssd_kernels.philox.layout import check_rows, split_seed
from ssd_kernels.philox.reference import words_to_exponential, words_to_uniform

__all__ = [
    "Backend",
    "exponential_noise",
    "noise_words",
    "philox4x32",
    "uniform_noise",
    "words_to_exponential",
    "words_to_uniform",
]


class Backend(StrEnum):
    """Who computes: torch int64 arithmetic (any device), NumPy (CPU), or Triton (CUDA; CPU in its interpreter)."""

    TORCH = "torch"
    NUMPY = "numpy"
    TRITON = "triton"


def default_backend(device: torch.device) -> Backend:
    """NumPy on CPUs; on CUDA Triton where it is installed, else torch."""
    if device.type == "cpu":
        return Backend.NUMPY
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return Backend.TRITON
    return Backend.TORCH


def _resolve(backend: Backend | str | None, device: torch.device | str) -> tuple[Backend, torch.device]:
    device = torch.device(device)
    chosen = default_backend(device) if backend is None else Backend(backend)
    if chosen is Backend.NUMPY and device.type != "cpu":
        raise ValueError(f"backend numpy runs on the CPU, not on {device}")
    return chosen, device


def philox4x32(counters: Tensor, keys: Tensor, *, backend: Backend | str = Backend.TORCH) -> Tensor:
    """Philox4x32-10: four 32-bit words per counter block.

    Parameters
    ----------
    counters : Tensor
        int64 ``[N, 4]``, values in [0, 2**32): the counter words, lowest first.
    keys : Tensor
        int64 ``[N, 2]``, values in [0, 2**32): low and high word of each row's key.
    backend : Backend
        All backends give the same words.

    Returns
    -------
    Tensor
        int64 ``[N, 4]``, values in [0, 2**32), on the device of ``counters``.

    Raises
    ------
    ValueError
        Shapes or values are out of range, or the backend cannot run on the device.

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.philox import philox4x32
    >>> words = philox4x32(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
    >>> [f"{word:08x}" for word in words[0].tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    n = counters.shape[0]
    if counters.shape != (n, 4) or keys.shape != (n, 2):
        raise ValueError(f"need counters [N, 4] and keys [N, 2], got {tuple(counters.shape)} and {tuple(keys.shape)}")
    for name, words in (("counters", counters), ("keys", keys)):
        if words.numel() and (int(words.min()) < 0 or int(words.max()) >= 1 << 32):
            raise ValueError(f"{name} must be in [0, 2**32)")
    chosen, _ = _resolve(backend, counters.device)
    if chosen is Backend.NUMPY:
        blocks = host.philox4x32(counters.numpy().astype("uint64"), keys.numpy().astype("uint64"))
        return torch.from_numpy(blocks.astype("int64"))
    if chosen is Backend.TRITON:
        from ssd_kernels.philox import triton_kernel

        return triton_kernel.philox4x32(counters, keys)
    return reference.philox4x32(counters, keys)


def noise_words(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocabulary: int,
    *,
    domain: int = 0,
    rounds: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    backend: Backend | str | None = None,
) -> Tensor:
    """Raw 32-bit words of every token of some (seed, position) rows.

    Parameters
    ----------
    seeds : Sequence[int]
        N integers, taken mod 2**64 (negative ones wrap).
    positions : Sequence[int]
        N positions in [0, 2**32): index of the token being drawn in prompt + output.
    vocabulary : int
        V, number of token ids; need not be a multiple of 4.
    domain : int
        Stream of the noise: 0 equality noise, 1 draft draws, 2 accept uniforms, 3 residual and bonus draws.
    rounds : Sequence[int], optional
        N integers in [0, 2**32), one per row; default 0. Tells apart uses of one position whose outcome was looked at.
    device : torch.device
        Where the result lies.
    backend : Backend, optional
        Default: NumPy on CPUs, Triton on CUDA where it is installed, else torch. All give the same words.

    Returns
    -------
    Tensor
        int64 ``[N, V]``, values in [0, 2**32). Token v of row n has word ``v & 3`` of the block with counter
        ``(v >> 2, positions[n], domain, rounds[n])`` and key ``seeds[n]``.

    Raises
    ------
    ValueError
        Lengths differ or a value is out of range.

    Examples
    --------
    >>> from ssd_kernels.philox import noise_words
    >>> [f"{word:08x}" for word in noise_words([0], [0], 3)[0].tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c']
    """
    rounds = check_rows(seeds, positions, vocabulary, domain, rounds)
    chosen, device = _resolve(backend, device)
    if chosen is Backend.NUMPY:
        return host.noise_words(seeds, positions, vocabulary, domain, rounds)
    if chosen is Backend.TRITON:
        from ssd_kernels.philox import triton_kernel

        return triton_kernel.noise_words(seeds, positions, vocabulary, domain, rounds, device)
    return reference.noise_words(seeds, positions, vocabulary, domain, rounds, device)


def exponential_noise(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocabulary: int,
    *,
    domain: int = 0,
    rounds: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    backend: Backend | str | None = None,
) -> Tensor:
    """Standard exponential noise E of every token of some (seed, position) rows.

    ``E = -log1p(-u)`` with ``u = min(float32((r + 0.5) 2**-32), 1 - 2**-24)`` and r the token's word, so that
    ``g = -log E`` is standard Gumbel noise and ``argmin E / p`` draws from p. E lies in [2**-33, 24 log 2].

    Parameters
    ----------
    seeds, positions, vocabulary, domain, rounds, device, backend
        As for :func:`noise_words`.

    Returns
    -------
    Tensor
        float32 ``[N, V]``, contiguous. u agrees bit for bit between backends; E agrees to a relative 5e-7, because
        each backend has its own logarithm. One backend gives one row the same bits in every call.

    Raises
    ------
    ValueError
        Lengths differ or a value is out of range.

    Examples
    --------
    >>> from ssd_kernels.philox import exponential_noise
    >>> exponential_noise([7], [0], 5).shape
    torch.Size([1, 5])
    """
    rounds = check_rows(seeds, positions, vocabulary, domain, rounds)
    chosen, device = _resolve(backend, device)
    if chosen is Backend.NUMPY:
        return host.exponential_noise(seeds, positions, vocabulary, domain, rounds)
    if chosen is Backend.TRITON:
        from ssd_kernels.philox import triton_kernel

        return triton_kernel.exponential_noise(seeds, positions, vocabulary, domain, rounds, device)
    return words_to_exponential(
        reference.noise_words(seeds, positions, vocabulary, domain, rounds, device)
    ).contiguous()


def uniform_noise(
    seed: int,
    positions: Sequence[int],
    *,
    domain: int,
    rounds: Sequence[int] | None = None,
    index: int = 0,
    device: torch.device | str = "cpu",
    backend: Backend | str | None = None,
) -> Tensor:
    """Uniforms u in (0, 1), one per position of one key.

    Parameters
    ----------
    seed, positions, domain, rounds, device, backend
        As for :func:`noise_words`, with one key for all rows.
    index : int
        Which token id's word is used, in [0, 2**34): several uniforms of one position are told apart by it.

    Returns
    -------
    Tensor
        float32 ``[N]``: ``min(float32((r + 0.5) 2**-32), 1 - 2**-24)`` of the words r; the same bits from all backends.

    Raises
    ------
    ValueError
        Lengths differ or a value is out of range.

    Examples
    --------
    >>> from ssd_kernels.philox import uniform_noise
    >>> uniform_noise(7, [0, 1, 2], domain=2).shape
    torch.Size([3])
    """
    seeds = (seed,) * len(positions)
    rounds = check_rows(seeds, positions, index + 1, domain, rounds)
    chosen, device = _resolve(backend, device)
    counters = torch.zeros(len(positions), 4, dtype=torch.int64, device=device)
    for column, values in ((0, index >> 2), (2, domain)):
        counters[:, column] = values
    for column, listed in ((1, positions), (3, rounds)):
        counters[:, column] = torch.tensor(list(listed), dtype=torch.int64, device=device)
    keys = torch.tensor([split_seed(seed)], dtype=torch.int64, device=device).expand(len(positions), 2)
    return words_to_uniform(philox4x32(counters, keys, backend=chosen)[:, index & 3])
