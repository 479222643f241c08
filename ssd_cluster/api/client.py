"""The seam between HTTP and an engine, and its implementation over an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from ssd_cluster.api.mailbox import Mailbox
from ssd_cluster.errors import EngineStopped
from ssd_cluster.target.request import Event, Finished, GenerationRequest, Sink

HEALTH_CHECK_S = 5.0


class ChatTokenizer(Protocol):
    """What HTTP needs of ``text.Tokenizer``."""

    def encode_prompt(self, text: str) -> list[int]: ...

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]: ...


class Engine(Protocol):
    """What HTTP needs of ``target.TargetEngine``; all methods are thread-safe and return at once."""

    def submit(self, request: GenerationRequest, sink: Sink) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def healthy(self) -> bool: ...


class EngineClient(Protocol):
    """How the endpoints reach an engine."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Events of one request, ``Finished`` last. Closing the generator early aborts the request.

        Raises:
            InvalidRequest, ContextTooLong, Overloaded: at the first step, before anything is scheduled.
            EngineStopped: the engine is stopping or makes no progress.
        """
        ...

    def healthy(self) -> bool:
        """False if there is work and the engine makes no progress."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """What the endpoints need to know about the model behind them.

    Attributes:
        name: the id clients use.
        max_context: most tokens of prompt and output together.
        vocabulary: ids from here on are refused.
        default_max_tokens: limit of a chat answer that names none, clipped to the context.
        fingerprint: ``system_fingerprint`` of the responses; changes with the model and its settings.
        replica: label of this replica in /metrics.
    """

    name: str
    tokenizer: ChatTokenizer
    max_context: int
    vocabulary: int
    default_max_tokens: int
    fingerprint: str
    replica: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)


class LocalEngineClient:
    """An engine in this process that runs on its own thread."""

    def __init__(self, engine: Engine, *, queue_limit: int = 64, health_check_s: float = HEALTH_CHECK_S) -> None:
        self._engine = engine
        self._queue_limit = queue_limit
        self._health_check_s = health_check_s

    def healthy(self) -> bool:
        return self._engine.healthy()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """See ``EngineClient.generate``. No wait is unbounded: between events the engine's health is looked at."""
        mailbox = Mailbox(asyncio.get_running_loop(), self._queue_limit)
        self._engine.submit(request, mailbox.put)
        ended = False
        try:
            while not ended:
                event = await mailbox.get(self._health_check_s)
                if event is not None:
                    ended = isinstance(event, Finished)
                    yield event
                elif not self._engine.healthy():
                    raise EngineStopped("the engine makes no progress")
        finally:
            if not ended:
                self._engine.abort(request.request_id)
