"""Counter-based noise: Philox4x32-10 words and exponential noise that depend on (seed, position, token id) only."""

from ssd_kernels.philox.api import Backend, exponential_noise, noise_words, philox4x32, words_to_exponential

__all__ = ["Backend", "exponential_noise", "noise_words", "philox4x32", "words_to_exponential"]
