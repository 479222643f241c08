"""Clients that ask one question after the other, as many at a time as the stage says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from ssd_cluster.bench.scaling.client import Answer, Endpoint, Question


@dataclass(slots=True)
class StageOutcome:
    """What the clients of one stage got.

    Attributes:
        answers: whole answers that ended in this stage.
        tokens: of those answers.
        failures: one line per request that got none.
        different: answers whose text is not that of plain decoding.
    """

    answers: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    different: int = 0


class Load:
    """Keeps ``streams`` requests open; answers are compared with those of plain decoding.

    Args:
        endpoint: whom to ask.
        expected: the answer of plain decoding to each question; the questions are asked in this order, over and over.
    """

    def __init__(self, endpoint: Endpoint, expected: Sequence[tuple[Question, Answer]]) -> None:
        self._endpoint = endpoint
        self._expected = expected
        self._lock = threading.Lock()
        self._asked = 0
        self._threads: dict[int, threading.Thread] = {}
        self._wanted = 0
        self.outcome = StageOutcome()

    def stage(self, streams: int) -> StageOutcome:
        """From now on ``streams`` at a time; what is counted from here on. Streams too many end with their answer."""
        with self._lock:
            self._wanted = streams
            self.outcome = outcome = StageOutcome()
            self._threads = {n: thread for n, thread in self._threads.items() if thread.is_alive()}
            fresh = {
                n: threading.Thread(target=self._stream, args=(n,)) for n in range(streams) if n not in self._threads
            }
            self._threads |= fresh
        for thread in fresh.values():
            thread.start()
        return outcome

    def finish(self, deadline_s: float) -> None:
        """Let every open request come to its end; one that does not is a failure, whatever becomes of it later."""
        with self._lock:
            self._wanted = 0
            threads, self._threads = self._threads, {}
        deadline = time.monotonic() + deadline_s
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = sum(thread.is_alive() for thread in threads.values())
        with self._lock:
            self.outcome.failures += [f"a request did not end within {deadline_s:g} s"] * stuck
            self.outcome = StageOutcome()

    def _stream(self, number: int) -> None:
        while True:
            with self._lock:
                if number >= self._wanted:
                    return
                question, plain = self._expected[self._asked % len(self._expected)]
                self._asked += 1
            self._ask(question, plain)

    def _ask(self, question: Question, plain: Answer) -> None:
        try:
            answer = self._endpoint.ask(question)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            with self._lock:
                self.outcome.failures.append(f"{type(error).__name__}: {error}")
            return
        with self._lock:
            self.outcome.answers += 1
            self.outcome.tokens += answer.tokens
            self.outcome.different += answer.text != plain.text


def plain_answers(
    endpoint: Endpoint, questions: Sequence[Question], progress: Callable[[str], None]
) -> list[tuple[Question, Answer]]:
    """Each question with the answer of plain decoding, asked one by one.

    Raises:
        httpx.HTTPError: an answer did not come.
    """
    expected = []
    for number, question in enumerate(questions, 1):
        expected.append((question, endpoint.ask(question, speculate=False)))
        progress(f"{number}/{len(questions)} answers of plain decoding")
    return expected
