"""Fields of OpenAI's (and vLLM's) API that are known and not supported: refused unless their value changes nothing."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticCustomError

_COMMON: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "priority": (0,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
}

CHAT_FIELDS: dict[str, tuple[Any, ...]] = _COMMON | {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}

COMPLETION_FIELDS: dict[str, tuple[Any, ...]] = _COMMON | {
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
    "add_special_tokens": (True,),
}

MESSAGE_FIELDS: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}

STREAM_OPTION_FIELDS: dict[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}


def unsupported(message: str, **context: Any) -> PydanticCustomError:
    """The validation error that becomes a 400 with code ``unsupported_field``."""
    return PydanticCustomError("unsupported_field", message, context)


def without_neutral(data: Any, known: dict[str, tuple[Any, ...]]) -> Any:
    """Drop fields of ``known`` that are null or neutral from a JSON object.

    Raises:
        PydanticCustomError: a known field asks for something that is not supported.
    """
    if not isinstance(data, dict):
        return data
    kept = {}
    for name, value in data.items():
        if name not in known:
            kept[name] = value
        elif value is not None and not _is_neutral(value, known[name]):
            raise unsupported("{field} is not supported yet", field=name)
    return kept


def _is_neutral(value: Any, accepted: tuple[Any, ...]) -> bool:
    """JSON equality: 0 and 0.0 are the same number, false is not 0."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in accepted)
