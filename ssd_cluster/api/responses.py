"""Response bodies. Fields are written out only where they were set, so that ``null`` appears where OpenAI has it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from ssd_cluster.target.request import Finished, SpeculationStats
from ssd_cluster.types import FinishReason

ApiFinish = Literal["stop", "length"]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Both are counts of OpenAI's Predicted Outputs, which have nothing to do with drafts: always null."""

    accepted_prediction_tokens: None = None
    rejected_prediction_tokens: None = None


class Usage(BaseModel):
    """Token counts of a request over all its choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, finished: Finished) -> Usage:
        return cls(
            prompt_tokens=finished.prompt_tokens,
            completion_tokens=finished.completion_tokens,
            total_tokens=finished.prompt_tokens + finished.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=finished.cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=None, rejected_prediction_tokens=None
            ),
        )


class SpeculativeDecoding(BaseModel):
    """Speculation of one request in vLLM's form, and how its cache lookups went."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    cache_hits: int
    cache_misses: int
    fallbacks: int

    @classmethod
    def of(cls, stats: SpeculationStats) -> SpeculativeDecoding:
        return cls(**{name: getattr(stats, name) for name in cls.model_fields})


class RequestMetrics(BaseModel):
    speculative_decoding: SpeculativeDecoding

    @classmethod
    def of(cls, finished: Finished) -> RequestMetrics:
        return cls(speculative_decoding=SpeculativeDecoding.of(finished.speculation))


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: None = None
    finish_reason: ApiFinish
    stop_reason: str | int | None = None


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: ApiFinish | None = None
    stop_reason: str | int | None = None


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: ApiFinish | None = None
    stop_reason: str | int | None = None


class _Envelope(BaseModel):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Envelope):
    choices: list[ChatChoice]
    usage: Usage
    metrics: RequestMetrics


class ChatChunk(_Envelope):
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: RequestMetrics | None = None


class TextCompletion(_Envelope):
    choices: list[TextChoice]
    usage: Usage
    metrics: RequestMetrics


class TextChunk(_Envelope):
    choices: list[TextChoice]
    usage: Usage | None = None
    metrics: RequestMetrics | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ssd-cluster"
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


@dataclass(frozen=True, slots=True)
class Identity:
    """What every body of one response repeats."""

    id: str
    model: str
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def api_finish(reason: FinishReason) -> ApiFinish | None:
    """OpenAI's name of a finish reason; None for an abort or an error, which is no regular end."""
    if reason is FinishReason.STOP:
        return "stop"
    return "length" if reason is FinishReason.LENGTH else None
