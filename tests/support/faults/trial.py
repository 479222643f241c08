"""One fault, while two streams are read: T = 0 and T = 1."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from support.faults.readers import Reader

TEMPERATURES = (0.0, 1.0)
PROMPT = "once upon a time there was a river"
DEADLINE_S = 300.0
POLL_S = 0.005
SPECULATION = {"k": 3, "rows": 4, "miss_policy": "always_wait"}  # a draft that shares a core with its target is slow


class Scene(Protocol):
    """Processes that answer requests, and what they count."""

    max_tokens: int

    def ask(self, params: dict[str, Any]) -> Iterator[str]:
        """Pieces of one streamed answer to ``PROMPT``."""

    def plain(self, params: dict[str, Any]) -> str:
        """What plain decoding answers."""

    def counter(self, name: str, **labels: str) -> float:
        """A counter of the target; sum over the labels that are not given."""


@dataclass(frozen=True)
class Outcome:
    """What a fault did. Seconds; None: there was nothing to detect or to recover.

    Attributes:
        fault: in words.
        client: what the client saw.
        detect_s: from the fault until it was noticed.
        recover_s: from the fault, or from its end where it has one, until drafts were of use again or ``client`` says.
        remark: what the times are.
        same_text: whether every answer was what plain decoding says, or its beginning where the stream broke.
    """

    fault: str
    client: str
    detect_s: float | None
    recover_s: float | None
    remark: str
    same_text: bool


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> float:
    """Ask until the answer is truthy; returns the time then, by ``time.monotonic``."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(POLL_S)
    return time.monotonic()


class Trial:
    """Two streams that use drafts, and the moments of a fault.

    Args:
        scene: what is asked.
        fault: its name in the table.
    """

    def __init__(self, scene: Scene, fault: str) -> None:
        self.scene, self.fault = scene, fault
        self.params = [
            {"temperature": t, "seed": 11 + i, "max_tokens": scene.max_tokens, "ignore_eos": True}
            for i, t in enumerate(TEMPERATURES)
        ]
        self.readers = [Reader(lambda params=params: scene.ask(params)) for params in self.params]
        self._detected: float | None = None
        self._recovered: float | None = None
        self._ended: float | None = None
        wait_for(lambda: all(reader.times for reader in self.readers), "both streams run")
        self._hits_grow("the drafts are of use")
        self.began = 0.0

    def strikes(self) -> None:
        """The fault happens right after this."""
        assert all(reader.is_alive() for reader in self.readers)
        self.began = time.monotonic()

    def over(self) -> None:
        """What was broken has just been mended."""
        self._ended = time.monotonic()

    def detected(self, condition: Callable[[], Any], what: str) -> None:
        self._detected = wait_for(condition, what)

    def counted(self, reason: str, before: float) -> None:
        """Wait until the target has counted a failure of a draft."""
        self.detected(lambda: self.failures(reason) > before, f"the target counts a failure of kind {reason!r}")

    def recovered(self, condition: Callable[[], Any], what: str) -> None:
        self._recovered = wait_for(condition, what)

    def drafts_help(self) -> None:
        """Wait until a draft is of use again."""
        self._recovered = self._hits_grow("the drafts are of use again")

    def failures(self, reason: str) -> float:
        return self.scene.counter("ssd:draft_failures_total", reason=reason)

    def outcome(self, remark: str = "") -> Outcome:
        """The end of a fault that no client may see as more than a pause."""
        end = time.monotonic()
        for reader in self.readers:
            reader.finish(DEADLINE_S)
        assert [reader.failure for reader in self.readers] == [None, None], self.fault
        pause = max(reader.longest_pause_s(self.began, end) for reader in self.readers)
        same = all(
            set(reader.answers) == {self.scene.plain(params)}
            for reader, params in zip(self.readers, self.params, strict=True)
        )
        said = "the same text" if same else "ANOTHER TEXT"
        return self._made(f"{said}; longest pause {pause:.2f} s", same, remark)

    def broken(self, said: str, remark: str = "") -> Outcome:
        """The end of a fault that breaks the streams: what had come by then is the beginning of the right text."""
        same = all(
            all(self.scene.plain(params).startswith(answer) for answer in reader.answers)
            for reader, params in zip(self.readers, self.params, strict=True)
        )
        return self._made(said, same, remark)

    def _made(self, client: str, same: bool, remark: str) -> Outcome:
        detect = self._detected - self.began if self._detected is not None else None
        since = self._ended if self._ended is not None else self.began
        recover = self._recovered - since if self._recovered is not None else None
        return Outcome(self.fault, client, detect, recover, remark, same)

    def _hits_grow(self, what: str) -> float:
        def hits() -> float:
            return self.scene.counter("ssd:cache_lookups_total", result="hit")

        before = hits()
        return wait_for(lambda: hits() > before, what)
