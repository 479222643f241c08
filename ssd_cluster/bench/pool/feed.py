"""A closed loop of requests on one target: every sequence answers recorded prompts, one after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ssd_cluster.bench.pool.outcomes import Outcomes, Text
from ssd_cluster.errors import SsdClusterError
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import Delta, Event, GenerationRequest


@dataclass(slots=True)
class Counts:
    """What the sequences of one target did inside the window of a measurement.

    ``tokens``: emitted; ``rounds``: of single sequences (each emits once); ``finished``: answers that ended;
    ``different``: those of them that are not the recorded text.
    """

    tokens: int = 0
    rounds: int = 0
    finished: int = 0
    different: int = 0


@dataclass(slots=True)
class _Answer:
    text: Text
    tokens: list[int] = field(default_factory=list)


class Feed:
    """Keeps ``sequences`` answers running on an engine until ``close``.

    Its sinks run on the engine's thread and submit the next request at once, so that no sequence ever waits for a
    client.

    Args:
        engine: started.
        name: of the target, for request ids.
        outcomes: what is replayed.
        sequences: answers at a time.
        first, stride: sequence i answers text ``first + i`` and then every ``stride``-th; together the feeds of all
            targets then run through different texts.
        clock: seconds.
    """

    def __init__(
        self,
        engine: TargetEngine,
        name: str,
        outcomes: Outcomes,
        sequences: int,
        *,
        first: int,
        stride: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.name = name
        self.sequences = sequences
        self.failure: str | None = None
        self._outcomes = outcomes
        self._places = [first + i for i in range(sequences)]
        self._stride = stride
        self._clock = clock
        self._counts = Counts()
        self._numbers = 0
        self._open = True
        self._lock = threading.Lock()

    def start(self) -> None:
        """Submit the first request of every sequence."""
        for sequence in range(self.sequences):
            self._submit(sequence)

    def close(self) -> None:
        """Submit nothing more; what still runs is not counted."""
        self._open = False

    def take(self) -> Counts:
        """Counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
        return counts

    def _submit(self, sequence: int) -> None:
        texts: Sequence[Text] = self._outcomes.texts
        answer = _Answer(texts[self._places[sequence] % len(texts)])
        self._places[sequence] += self._stride
        self._numbers += 1
        params = SamplingParams(
            temperature=self._outcomes.temperature,
            top_p=self._outcomes.top_p,
            top_k=self._outcomes.top_k,
            seed=answer.text.seed,
            max_tokens=len(answer.text.output),
            ignore_eos=self._outcomes.ignore_eos,
        )
        request = GenerationRequest(f"{self.name}-{self._numbers}", answer.text.prompt, params)
        try:
            self.engine.submit(request, lambda event: self._take(sequence, answer, event))
        except SsdClusterError as error:
            if self._open:
                self.failure = error.message

    def _take(self, sequence: int, answer: _Answer, event: Event) -> None:
        """A sink: on the engine's thread."""
        if not self._open:
            return
        if isinstance(event, Delta):
            answer.tokens.extend(event.token_ids)
            with self._lock:
                self._counts.tokens += len(event.token_ids)
                self._counts.rounds += 1
            return
        if event.error is not None:
            self.failure = event.error
            return
        with self._lock:
            self._counts.finished += 1
            self._counts.different += tuple(answer.tokens) != answer.text.output
        self._submit(sequence)
