"""From request bodies to what the engine takes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from ssd_cluster.api.client import ServedModel
from ssd_cluster.api.schemas import ChatRequest, CompletionRequest, GenerationOptions
from ssd_cluster.errors import ContextTooLong, InvalidRequest, ModelNotFound
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.request import GenerationRequest, SpeculativeOptions

COMPLETION_MAX_TOKENS = 16  # OpenAI's default of /v1/completions


def chat_request(body: ChatRequest, model: ServedModel) -> GenerationRequest:
    """Engine request of a chat; blocks while it tokenizes.

    Raises:
        InvalidRequest, ContextTooLong, ModelNotFound: see their messages.
    """
    _check_model(body, model)
    try:
        prompt = model.tokenizer.apply_chat_template([_message(m.role, m.content) for m in body.messages])
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=error.param or "messages") from error
    return _request("chatcmpl", body, prompt, model, prompt_field="messages", default=model.default_max_tokens)


def completion_request(body: CompletionRequest, model: ServedModel) -> GenerationRequest:
    """Engine request of a completion; blocks while it tokenizes.

    Raises:
        InvalidRequest, ContextTooLong, ModelNotFound: see their messages.
    """
    _check_model(body, model)
    given = body.prompt
    prompt = model.tokenizer.encode_prompt(given) if isinstance(given, str) else given
    return _request("cmpl", body, prompt, model, prompt_field="prompt", default=COMPLETION_MAX_TOKENS)


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": "system" if role == "developer" else role, "content": content}


def _check_model(body: GenerationOptions, model: ServedModel) -> None:
    if body.model is not None and body.model != model.name:
        raise ModelNotFound(f"model {body.model!r} is not served here; {model.name!r} is", param="model")


def _request(
    prefix: str, body: GenerationOptions, prompt: Sequence[int], model: ServedModel, *, prompt_field: str, default: int
) -> GenerationRequest:
    _check_ids(prompt, prompt_field, model.vocabulary)
    _check_ids(body.stop_token_ids or (), "stop_token_ids", model.vocabulary)
    if not prompt:
        raise InvalidRequest("the prompt is empty: there is no token to start from", param=prompt_field)
    speculative = body.speculative
    return GenerationRequest(
        request_id=f"{prefix}-{uuid.uuid4().hex}",
        prompt_token_ids=tuple(prompt),
        params=_sampling(body, _max_tokens(body, len(prompt), model, prompt_field, default)),
        speculative=SpeculativeOptions(speculative.enabled, speculative.num_speculative_tokens)
        if speculative is not None
        else SpeculativeOptions(),
    )


def _check_ids(ids: Sequence[int], field: str, vocabulary: int) -> None:
    bad = next((t for t in ids if not 0 <= t < vocabulary), None)
    if bad is not None:
        raise InvalidRequest(f"{field}: token id {bad} is not in the vocabulary of {vocabulary} ids", param=field)


def _max_tokens(body: GenerationOptions, prompt: int, model: ServedModel, prompt_field: str, default: int) -> int:
    room = model.max_context - prompt
    if room < 1:
        raise ContextTooLong(
            f"the prompt has {prompt} tokens, the context holds {model.max_context} for prompt and output",
            param=prompt_field,
        )
    name, explicit = body.token_limit
    if explicit is None:
        return min(default, room)
    if explicit > room:
        raise ContextTooLong(
            f"{name} is {explicit}, but after a prompt of {prompt} tokens the context of {model.max_context} "
            f"has room for {room}",
            param=name,
        )
    return explicit


def _sampling(body: GenerationOptions, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        n=body.n or 1,
    )
