"""What a request asks of sampling, validated once and frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ssd_cluster.errors import InvalidRequest

SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request; every choice of it shares them.

    Attributes:
        temperature: 0 is greedy.
        top_p: smallest set of tokens whose mass reaches ``top_p`` is kept; 1 keeps all.
        top_k: number of tokens kept; 0 keeps all.
        min_p: tokens below ``min_p`` times the largest probability are dropped; 0 keeps all.
        seed: any integer, taken mod 2**64; None draws 64 random bits at submission.
        max_tokens: at least 1; upper limit of emitted tokens.
        min_tokens: no stop token may be drawn before this many tokens.
        stop: stop strings, not part of the output text.
        stop_token_ids: further ids that end the output.
        ignore_eos: go on after the model's end-of-sequence tokens.
        n: number of choices.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1

    def __post_init__(self) -> None:
        checks = (
            ("temperature", math.isfinite(self.temperature) and 0 <= self.temperature <= 100, "in [0, 100]"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "0 (off) or positive"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            ("n", 1 <= self.n <= 64, "between 1 and 64"),
            ("stop", all(self.stop), "non-empty strings"),
            ("stop_token_ids", all(t >= 0 for t in self.stop_token_ids), "non-negative ids"),
        )
        for name, good, wanted in checks:
            if not good:
                raise InvalidRequest(f"{name} must be {wanted}, got {getattr(self, name)!r}", param=name)

    def choice_seed(self, request_seed: int, choice: int) -> int:
        """64-bit seed of one choice: request seed + choice index, mod 2**64."""
        return (request_seed + choice) & SEED_MASK
