"""One prompt, one answer, on an engine in this process."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ssd_cluster.errors import EngineStopped
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest

_STALL_S = 120.0


@dataclass(frozen=True, slots=True)
class Completion:
    """The first choice of a request and the counts of the whole request."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    finished: Finished

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens after the first per second of decoding; 0 if there is only one."""
        return (len(self.token_ids) - 1) / self.finished.decode_s if self.finished.decode_s > 0 else 0.0

    @property
    def acceptance_text(self) -> str:
        s = self.finished.speculation
        if not s.num_spec_steps:
            return "no speculation"
        return f"{s.mean_acceptance_length:.2f} tokens per round, {s.cache_hits} hits, {s.cache_misses} misses"

    def as_json(self) -> dict[str, Any]:
        """text, token_ids, finish_reason, usage, metrics.speculative_decoding and timing, in the API's names."""
        f = self.finished
        speculation = asdict(f.speculation) | {
            "mean_acceptance_length": f.speculation.mean_acceptance_length,
            "draft_acceptance_rate": f.speculation.draft_acceptance_rate,
        }
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": f.prompt_tokens,
                "completion_tokens": f.completion_tokens,
                "total_tokens": f.prompt_tokens + f.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": f.cached_tokens},
            },
            "metrics": {"speculative_decoding": speculation},
            "timing": {"prefill_s": f.prefill_s, "decode_s": f.decode_s, "tokens_per_s": self.tokens_per_s},
        }


def complete(
    engine: TargetEngine,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    on_text: Callable[[str], None] = lambda text: None,
    stall_s: float = _STALL_S,
) -> Completion:
    """Submit one request to a started engine and wait for its end; it is aborted if this is interrupted.

    Raises:
        InvalidRequest: the engine refuses the request.
        EngineStopped: the engine failed, or nothing came for ``stall_s``.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = GenerationRequest(f"local-{secrets.token_hex(8)}", tuple(prompt_ids), params)
    engine.submit(request, events.put)
    tokens: list[int] = []
    texts: list[str] = []
    reason = ""
    try:
        while True:
            event = events.get(timeout=stall_s)
            if isinstance(event, Finished):
                break
            if isinstance(event, Delta) and event.choice == 0:
                tokens += event.token_ids
                texts.append(event.text)
                on_text(event.text)
                reason = event.finish_reason.value if event.finish_reason else reason
    except queue.Empty:
        engine.abort(request.request_id)
        raise EngineStopped(f"the engine made no progress for {stall_s:g} s") from None
    except BaseException:
        engine.abort(request.request_id)
        raise
    if event.error is not None:
        raise EngineStopped(event.error)
    return Completion(tuple(tokens), "".join(texts), reason, event)
