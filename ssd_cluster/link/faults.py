"""What can go wrong with the messages of one direction of a link, decided by a seed; ``faulty`` applies it."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from ssd_cluster.errors import ConfigError, InvalidFrame
from ssd_cluster.link.codec import decode_to_draft, decode_to_target, encode
from ssd_cluster.link.garbage import corrupt_frame, corrupt_message
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.messages import Message, ToDraft


class Timer(Protocol):
    """Runs functions later: ``ThreadTimer`` in real time, a manual one in tests."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None: ...


class ThreadTimer:
    """A ``Timer`` with a thread of its own; due functions run there, in order of their time."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ssd-link-timer", daemon=True)
        self._thread.start()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._number), callback))
            self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Forget what is not due yet and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closing:
                    return
                _, _, callback = heapq.heappop(self._due)
            callback()


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What happens to the messages of one direction. The default plan does nothing.

    Attributes:
        seed: of every random decision.
        kill_after: the stream dies instead of passing message number ``kill_after`` (counted from 0).
        delay_s, jitter_s: each message is late by ``delay_s`` plus a uniform share of ``jitter_s``; with jitter,
            messages may overtake each other.
        drop, duplicate, reorder, garbage, byte_garbage: probability per message that it is lost; passed twice; held
            back until the next one has passed (or ``hold_s`` have); replaced by a wrong but well-formed one; corrupted
            as a frame. Of corrupted frames, a backend with frames gets the bytes themselves; elsewhere what still
            decodes is passed and the rest lost.
        hold_s: longest time that a reordered message is held back.
        vocabulary: token ids of garbage are below it.
        only: types of message that the plan is about; empty = all.
        skip: number of messages at the start that pass untouched (a handshake, say).
    """

    seed: int = 0
    kill_after: int | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    garbage: float = 0.0
    byte_garbage: float = 0.0
    hold_s: float = 0.05
    vocabulary: int = 256
    only: tuple[type, ...] = ()
    skip: int = 0

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "garbage", "byte_garbage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a probability, got {getattr(self, name)!r}", param=name)
        for name in ("delay_s", "jitter_s", "hold_s", "skip"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)!r}", param=name)
        if self.vocabulary < 1 or (self.kill_after is not None and self.kill_after < 0):
            raise ConfigError("vocabulary must be positive and kill_after not negative")

    @property
    def needs_timer(self) -> bool:
        return self.delay_s > 0 or self.jitter_s > 0 or self.reorder > 0


class FaultLine:
    """One direction of one stream: takes messages, passes on what the plan leaves of them.

    Args:
        plan: what to do.
        number: of the stream among those that share the plan; each draws decisions of its own.
        timer: needed for delay, jitter and reorder.
        forward: takes a message that passes.
        kill: ends the stream.
        raw: takes a corrupted frame, where the backend can send bytes.

    Raises:
        ConfigError: the plan needs a timer and there is none.
    """

    def __init__(
        self,
        plan: FaultPlan,
        number: int,
        timer: Timer | None,
        forward: Callable[[Message], None],
        kill: Callable[[str], None],
        raw: Callable[[bytes], None] | None = None,
    ) -> None:
        if timer is None and plan.needs_timer:
            raise ConfigError("a plan with delay, jitter or reorder needs a timer", param="timer")
        self._plan = plan
        self._timer = timer
        self._forward = forward
        self._kill = kill
        self._raw = raw
        self._rng = random.Random(f"{plan.seed}/{number}")
        self._lock = threading.RLock()
        self._held: list[Message] = []
        self._count = 0
        self.whole = True  # False: partitioned or dead, everything is lost
        self.lost = 0

    def put(self, message: Message) -> None:
        """Send one message through the line."""
        with self._lock:
            number, self._count = self._count, self._count + 1
            if self._plan.kill_after is not None and number >= self._plan.kill_after:
                self._kill("killed by the fault plan")
            elif not self.whole:
                self.lost += 1
            elif number < self._plan.skip or (self._plan.only and type(message) not in self._plan.only):
                self._arrive(message)
            else:
                self._disturb(message)

    def _disturb(self, message: Message) -> None:
        plan, rng = self._plan, self._rng
        # Every draw is made for every message, so that one probability does not shift the decisions of another.
        drop, twice, swap, wrong, broken, late = (rng.random() for _ in range(6))
        content = random.Random(rng.getrandbits(64))
        if drop < plan.drop:
            self.lost += 1
            return
        if wrong < plan.garbage:
            message = corrupt_message(message, content, plan.vocabulary)
        if broken < plan.byte_garbage:
            self._corrupt(message, content)
            return
        if swap < plan.reorder and self._timer is not None:
            self._held.append(message)
            self._timer.call_later(plan.hold_s, lambda: self._release(message))
            return
        held, self._held = self._held, []
        self._pass([message] * (2 if twice < plan.duplicate else 1) + held, plan.delay_s + plan.jitter_s * late)

    def _corrupt(self, message: Message, content: random.Random) -> None:
        frame = corrupt_frame(encode(message), content)
        if self._raw is not None:
            self._raw(frame)
            return
        decode = decode_to_draft if isinstance(message, ToDraft) else decode_to_target
        try:
            decoded: Message = decode(frame, Limits(vocabulary=self._plan.vocabulary))
        except InvalidFrame:
            self.lost += 1
            return
        self._pass([decoded], self._plan.delay_s)

    def _release(self, message: Message) -> None:
        with self._lock:
            if any(held is message for held in self._held):
                self._held = [held for held in self._held if held is not message]
                self._pass([message], self._plan.delay_s)

    def _pass(self, messages: list[Message], delay_s: float) -> None:
        if delay_s > 0 and self._timer is not None:
            self._timer.call_later(delay_s, lambda: self._arrive_all(messages))
        else:
            self._arrive_all(messages)

    def _arrive_all(self, messages: list[Message]) -> None:
        for message in messages:
            self._arrive(message)

    def _arrive(self, message: Message) -> None:
        if self.whole:
            self._forward(message)
        else:
            self.lost += 1
