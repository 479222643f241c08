"""Philox4x32-10 and the noise of the design, in Python integers and math; slow and obvious."""

from __future__ import annotations

import math
import struct

VECTORS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
"""Published (counter, key, words), from the known-answer file of Random123."""


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b // 2**32) ^ x[1] ^ k[0], b % 2**32, (a // 2**32) ^ x[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(x)


def word(seed: int, position: int, token: int, domain: int = 0, round_word: int = 0) -> int:
    seed %= 2**64
    return philox((token // 4, position, domain, round_word), (seed % 2**32, seed // 2**32))[token % 4]


def uniform(r: int) -> float:
    """u of a word; ``struct`` rounds the exact double to the nearest float32."""
    rounded = struct.unpack("<f", struct.pack("<f", (r + 0.5) * 2.0**-32))[0]
    return min(rounded, 1 - 2.0**-24)


def exponential(r: int) -> float:
    return -math.log1p(-uniform(r))
