"""Run in its own process with TRITON_INTERPRET=1: the Triton kernels on CPU tensors; results as JSON on stdout."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl
from ssd_kernels.philox import exponential_noise, noise_words, philox4x32, triton_kernel, words_to_exponential
from ssd_kernels.philox.triton_kernel import exponential

from support import philox_oracle as oracle

torch.set_num_threads(1)


@triton.jit
def library_kernel(counter_ptr, seed_ptr, out_ptr):
    one = tl.arange(0, 1)
    c0 = tl.load(counter_ptr + one).to(tl.uint32)
    c1 = tl.load(counter_ptr + 1 + one).to(tl.uint32)
    c2 = tl.load(counter_ptr + 2 + one).to(tl.uint32)
    c3 = tl.load(counter_ptr + 3 + one).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(seed_ptr + one), c0, c1, c2, c3)
    tl.store(out_ptr + one, w0.to(tl.int64))
    tl.store(out_ptr + 1 + one, w1.to(tl.int64))
    tl.store(out_ptr + 2 + one, w2.to(tl.int64))
    tl.store(out_ptr + 3 + one, w3.to(tl.int64))


@triton.jit
def exponential_kernel(words_ptr, out_ptr, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(out_ptr + lanes, exponential(tl.load(words_ptr + lanes).to(tl.uint32)))


def library_words(seed: int, counter: tuple[int, ...]) -> list[int]:
    """What ``tl.philox`` gives; the seed goes in as the signed 64-bit integer with the same bits."""
    out = torch.zeros(4, dtype=torch.int64)
    library_kernel[(1,)](torch.tensor(counter), torch.tensor([seed - (seed >> 63 << 64)]), out)
    return out.tolist()


def main() -> None:
    counters, keys, words = (torch.tensor(column) for column in zip(*oracle.VECTORS, strict=True))
    seeds, positions = [5, -1, 12345678901234567890], [0, 2**32 - 1, 77]
    report: dict[str, object] = {
        "vectors": torch.equal(philox4x32(counters, keys, backend="triton"), words),
        "library_vectors": [library_words(k[0] + (k[1] << 32), c) == list(w) for c, k, w in oracle.VECTORS],
        "words": {},
        "error": {},
    }
    for vocabulary in (1, 3, 5, 1023, 2049, 49152, 151936):
        if vocabulary > 10**4:
            triton_kernel.BLOCK = 4096  # the interpreter's cost is per program
        row = (seeds, positions, vocabulary)
        words = [noise_words(*row, domain=2, rounds=[0, 9, 2**32 - 1], backend=b) for b in ("triton", "torch")]
        same = torch.equal(*words)
        noise = exponential_noise(*row, backend="triton")
        wanted = exponential_noise(*row, backend="torch")
        report["words"][vocabulary] = same  # type: ignore[index]
        report["error"][vocabulary] = float(((noise - wanted).abs() / wanted).max())  # type: ignore[index]
    # 2**24 is u = 2**-8, where the series hands over to the logarithm.
    ends = torch.tensor([0, 2**32 - 1, 2**32 - 2, 1, 2**24 - 1, 2**24, 2**24 + 300, 2**31])
    out = torch.empty(8)
    exponential_kernel[(1,)](ends, out, SIZE=8)
    report["ends"] = out.tolist()
    report["ends_reference"] = words_to_exponential(ends).tolist()
    report["no_rows"] = list(noise_words([], [], 7, backend="triton").shape)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
