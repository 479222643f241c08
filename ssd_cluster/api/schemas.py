"""Request bodies of the OpenAI-compatible endpoints.

Types are strict: ``"16"`` is no number. ``null`` means "not given", as with OpenAI. Whatever is not declared here is
refused, naming the field; known fields with a value that changes nothing pass (fields.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ssd_cluster.api.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MESSAGE_FIELDS,
    STREAM_OPTION_FIELDS,
    unsupported,
    without_neutral,
)

MAX_STOPS = 4
TokenId = Annotated[int, Field(ge=0)]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("unicode", "is no valid Unicode: it holds half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class StreamOptions(_Body):
    """``include_usage``: one more chunk with the usage and the metrics of the request before ``[DONE]``."""

    include_usage: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return without_neutral(data, STREAM_OPTION_FIELDS)


class Speculative(_Body):
    """Per-request switch and ceiling of speculation; it changes speed, never text."""

    enabled: bool = True
    num_speculative_tokens: int | None = Field(default=None, ge=0)


class Message(_Body):
    """One message of a chat. ``content``: a string, or parts of type ``text``, which are joined by line ends."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        kept = without_neutral(data, MESSAGE_FIELDS)
        if isinstance(kept, dict) and kept.get("role") in ("tool", "function"):
            raise unsupported("messages of role {role} are not supported yet", field="role", role=kept["role"])
        return kept

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        texts = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise unsupported("content parts of type {kind} are not supported yet", kind=repr(kind))
            if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
                raise PydanticCustomError("text_part", "a text part has the fields type and text, a string")
            texts.append(part["text"])
        return "\n".join(texts)


class GenerationOptions(_Body):
    """What both endpoints have in common."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    min_tokens: int | None = Field(default=None, ge=0)
    seed: int | None = None
    stop: list[Annotated[Text, Field(min_length=1)]] | None = Field(default=None, max_length=MAX_STOPS)
    stop_token_ids: list[TokenId] | None = None
    n: int | None = Field(default=None, ge=1, le=64)
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculative: Speculative | None = None
    user: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationOptions:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "stream_options", "stream_options needs stream to be true", {"field": "stream_options"}
            )
        return self

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the output."""
        return "max_tokens", self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(GenerationOptions):
    """Body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return without_neutral(data, CHAT_FIELDS)

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError(
                "two_limits", "max_tokens and max_completion_tokens contradict each other", {"field": "max_tokens"}
            )
        return self

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens


class CompletionRequest(GenerationOptions):
    """Body of POST /v1/completions. ``prompt``: a string, or token ids; a list with one of them counts as that one."""

    prompt: Text | list[TokenId]

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return without_neutral(data, COMPLETION_FIELDS)

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise unsupported("several prompts in one request are not supported yet")
            prompt = prompt[0]
        ids = isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)
        if ids and any(t < 0 for t in prompt):
            raise PydanticCustomError("prompt_ids", "token ids must not be negative")
        if not ids and not isinstance(prompt, str):
            raise PydanticCustomError("prompt_type", "must be a string or a list of token ids")
        return prompt
