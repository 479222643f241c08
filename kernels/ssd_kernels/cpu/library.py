"""The compiled functions, called with the addresses of tensors: 2 us a call, where a torch operation takes 4 to 25."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu.build import build
from ssd_kernels.philox.layout import check_rows, split_seed

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
DTYPES = (torch.float32, torch.bfloat16)


class CpuKernels:
    """Functions of contiguous CPU tensors in float32 or bfloat16.

    Linear layers run on as many threads as torch uses, all else on the calling one.

    The result of a row does not depend on the rows beside it. Shapes and dtypes are the caller's duty: they are not
    checked at every call.

    Attributes:
        tiles: the processor multiplies matrices by AMX tiles and lets this process do so.
    """

    def __init__(self, folder: Path, compiler: str = "cc") -> None:
        """Load the library from ``folder``; compile it first if it is not there, by a command that takes GCC's options.

        Raises:
            KernelUnavailable: it cannot be built or loaded here.
        """
        try:
            library = ctypes.CDLL(str(build(folder, compiler)))
        except OSError as error:
            raise KernelUnavailable(f"the compiled CPU kernels do not load: {error}") from error
        self._add_norm = library.ssd_add_norm
        self._add_norm.argtypes = (_POINTER, _POINTER, _INT, _POINTER, _FLOAT, _POINTER, _INT, _INT, _INT)
        self._rotate = library.ssd_rotate
        self._rotate.argtypes = (_POINTER, _INT, _POINTER, _POINTER, _FLOAT, _INT, _INT, _INT, _INT)
        self._gate = library.ssd_gate
        self._gate.argtypes = (_POINTER, _POINTER, _INT, _INT, _INT)
        self.scratch = library.ssd_scratch
        self.scratch.argtypes, self.scratch.restype = (_POINTER, _INT), _INT
        self.attend = library.ssd_attend
        self.attend.argtypes = (_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _POINTER, _INT)
        self.int8_linear = library.ssd_int8_linear
        self.int8_linear.argtypes = (_POINTER, _POINTER, _POINTER, _INT, _POINTER, _INT, _INT, _INT)
        self.bf16_linear = library.ssd_bf16_linear
        self.bf16_linear.argtypes = (_POINTER, _POINTER, _POINTER, _INT, _INT, _INT)
        for function in (self._add_norm, self._rotate, self._gate, self.attend, self.int8_linear, self.bf16_linear):
            function.restype = None
        self._exponential = library.ssd_exponential
        self._exponential.argtypes, self._exponential.restype = (*[_INT] * 5, _POINTER, _INT), None
        self._race, self._largest = library.ssd_race, library.ssd_largest
        self._race.argtypes, self._race.restype = (_POINTER, _POINTER, _INT), _INT
        self._largest.argtypes, self._largest.restype = (_POINTER, _INT), _INT
        self.layers_scratch = library.ssd_layers_scratch
        self.layers_scratch.argtypes, self.layers_scratch.restype = (_POINTER, _INT), _INT
        self.layers = library.ssd_layers
        self.layers.argtypes, self.layers.restype = (*[_POINTER] * 6, _INT, _INT), None
        library.ssd_tiles.restype = _INT
        self.tiles = bool(library.ssd_tiles())

    def add_norm(
        self, hidden: Tensor, delta: Tensor | None, weight: Tensor, floor: float, dtype: torch.dtype
    ) -> Tensor:
        """hidden [T, E] float32 += delta [T, E]; returns hidden / sqrt(sum of squares + floor) * weight in ``dtype``.

        weight: [E] float32. With the weight of an RMS norm times sqrt(E) and floor E * eps this is the RMS norm.
        """
        out = torch.empty(hidden.shape, dtype=dtype)
        rows, width = hidden.shape
        self._add_norm(
            hidden.data_ptr(),
            None if delta is None else delta.data_ptr(),
            delta is not None and delta.dtype is torch.bfloat16,
            weight.data_ptr(),
            floor,
            out.data_ptr(),
            rows,
            width,
            dtype is torch.bfloat16,
        )
        return out

    def rotate(self, heads: Tensor, n_rotated: int, rotation: Tensor, weight: Tensor | None, floor: float) -> None:
        """Rotate the first ``n_rotated`` heads of heads [T, N, D] in place.

        rotation: [T, D / 2] complex64, for pairs of neighbouring dimensions. weight: None, or [n_rotated, D] float32:
        then each head is normalised first, as ``add_norm`` does it.
        """
        rows, n, D = heads.shape
        self._rotate(
            heads.data_ptr(),
            n * D,
            rotation.data_ptr(),
            None if weight is None else weight.data_ptr(),
            floor,
            rows,
            n_rotated,
            D,
            heads.dtype is torch.bfloat16,
        )

    def gate(self, joined: Tensor) -> Tensor:
        """silu(gate) * up, [T, I], of joined [T, 2 * I] = [gate, up]."""
        rows, width = joined.shape[0], joined.shape[1] // 2
        out = torch.empty((rows, width), dtype=joined.dtype)
        self._gate(joined.data_ptr(), out.data_ptr(), rows, width, joined.dtype is torch.bfloat16)
        return out

    def exponential(self, seed: int, position: int, vocabulary: int, domain: int, round_word: int = 0) -> Tensor:
        """E of every token id, float32 [V]; one row of :func:`ssd_kernels.philox.exponential_noise`.

        Raises:
            ValueError: an argument does not fit the counter.
        """
        check_rows([seed], [position], vocabulary, domain, [round_word])
        out = torch.empty(vocabulary)
        self._exponential(*split_seed(seed), position, domain, round_word, out.data_ptr(), vocabulary)
        return out

    def race(self, noise: Tensor, law: Tensor) -> int:
        """argmin noise / law of two rows [V] float32, lowest id; -1 if a quotient is NaN or none is finite."""
        return int(self._race(noise.data_ptr(), law.data_ptr(), len(law)))

    def largest(self, row: Tensor) -> int:
        """argmax of a row [V] float32, lowest id; -1 if one is NaN or the largest is not finite."""
        return int(self._largest(row.data_ptr(), len(row)))
