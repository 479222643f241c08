"""What goes into the target engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.types import FinishReason


@dataclass(frozen=True, slots=True)
class SpeculativeOptions:
    """Per-request switch and ceiling of speculation."""

    enabled: bool = True
    num_speculative_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request: ``params.n`` choices over one prompt. ``request_id`` may be reused once its request has ended.

    ``priority``: the larger goes first; the smaller loses its blocks and its draft session first.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    speculative: SpeculativeOptions = SpeculativeOptions()
    priority: int = 0


@dataclass(slots=True)
class SpeculationStats:
    """Counts over the verified proposals of one request; only emitted tokens count as accepted.

    ``acceptance_histogram[j]``: rounds with a proposal that kept exactly j proposed tokens.
    """

    num_spec_tokens: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    cache_hits: int = 0
    cache_misses: int = 0
    fallbacks: int = 0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verified proposal, bonus included; 0 without proposals."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens and text of one choice. ``text`` may be empty while bytes or a possible stop string are held back.

    The delta with ``finish_reason`` is the choice's last one. ``stop_reason``: the stop string or id that matched.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request, after the last delta of every choice.

    ``error``: message for the client if the engine failed; then deltas may be missing.
    """

    request_id: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    speculation: SpeculationStats
    prefill_s: float
    decode_s: float
    error: str | None = None


Event = Delta | Finished
Sink = Callable[[Event], None]
