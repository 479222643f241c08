"""Counter-based noise: Philox4x32-10 words and the noise made of them, by (seed, position, token id, domain, round)."""

from ssd_kernels.philox.api import (
    Backend,
    exponential_noise,
    noise_words,
    philox4x32,
    uniform_noise,
    words_to_exponential,
    words_to_uniform,
)

__all__ = [
    "Backend",
    "exponential_noise",
    "noise_words",
    "philox4x32",
    "uniform_noise",
    "words_to_exponential",
    "words_to_uniform",
]
