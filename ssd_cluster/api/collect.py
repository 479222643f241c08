"""One body at the end: what a request without ``stream`` gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ssd_cluster.api.responses import (
    ApiFinish,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    Identity,
    RequestMetrics,
    TextChoice,
    TextCompletion,
    Usage,
    api_finish,
)
from ssd_cluster.errors import EngineStopped
from ssd_cluster.target.request import Delta, Event, Finished


@dataclass(slots=True)
class _Choice:
    pieces: list[str] = field(default_factory=list)
    finish: ApiFinish | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All of one request: (text, finish reason, stop reason) per choice, and its counts."""

    choices: list[tuple[str, ApiFinish, str | int | None]]
    finished: Finished


async def collect(events: AsyncIterator[Event], n: int) -> Outcome:
    """Wait for the whole answer.

    Raises:
        EngineStopped: the engine failed or was stopped before every choice had ended.
    """
    choices = [_Choice() for _ in range(n)]
    finished: Finished | None = None
    async for event in events:
        if isinstance(event, Delta):
            choice = choices[event.choice]
            choice.pieces.append(event.text)
            if event.finish_reason is not None:
                choice.finish, choice.stop_reason = api_finish(event.finish_reason), event.stop_reason
        else:
            finished = event
    return Outcome([_ended(c, finished) for c in choices], complete(finished))


def complete(finished: Finished | None) -> Finished:
    """The last event, if it says that all went well.

    Raises:
        EngineStopped: it is missing or carries an error.
    """
    if finished is None:
        raise EngineStopped("the engine ended the request without a result")
    if finished.error is not None:
        raise EngineStopped(finished.error)
    return finished


def _ended(choice: _Choice, finished: Finished | None) -> tuple[str, ApiFinish, str | int | None]:
    complete(finished)
    if choice.finish is None:
        raise EngineStopped("the engine stopped before the answer was complete")
    return "".join(choice.pieces), choice.finish, choice.stop_reason


def chat_completion(identity: Identity, outcome: Outcome) -> ChatCompletion:
    """Body of a chat answer."""
    return ChatCompletion(
        **identity.envelope("chat.completion"),
        choices=[
            ChatChoice(
                index=i,
                message=ChatMessage(role="assistant", content=text, refusal=None),
                logprobs=None,
                finish_reason=finish,
                stop_reason=stop,
            )
            for i, (text, finish, stop) in enumerate(outcome.choices)
        ],
        usage=Usage.of(outcome.finished),
        metrics=RequestMetrics.of(outcome.finished),
    )


def text_completion(identity: Identity, outcome: Outcome) -> TextCompletion:
    """Body of a plain completion."""
    return TextCompletion(
        **identity.envelope("text_completion"),
        choices=[
            TextChoice(index=i, text=text, logprobs=None, finish_reason=finish, stop_reason=stop)
            for i, (text, finish, stop) in enumerate(outcome.choices)
        ],
        usage=Usage.of(outcome.finished),
        metrics=RequestMetrics.of(outcome.finished),
    )
