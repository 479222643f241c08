"""Which continuations a table needs, and running those that are missing."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ssd_cluster.bench.rules.decoding import Continuation, Terms
from ssd_cluster.bench.store import Record, Store


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a workload; ``seed`` of its continuations."""

    index: int
    text: str
    seed: int

    @property
    def key(self) -> str:
        """Its place (which decides the seed) and its text."""
        return f"{self.index}:{zlib.crc32(self.text.encode()):08x}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of a table: a rule and what it is run with. ``name``: key of its records, the same in every run."""

    name: str
    rule: str
    terms: Terms

    def key(self, prompt: Prompt) -> str:
        """Key of one prompt's record."""
        return f"{self.name}|{prompt.key}"


Runner = Callable[[Cell, Prompt], Record]


def prompts_of(texts: Sequence[str], seed: int) -> list[Prompt]:
    """Prompts with their seeds."""
    return [Prompt(i, text, seed + i) for i, text in enumerate(texts)]


def missing(cells: Sequence[Cell], prompts: Sequence[Prompt], store: Store) -> Iterator[tuple[Cell, Prompt]]:
    """What has no record yet: all cells of a prompt before the next prompt, so that a part is comparable too."""
    for prompt in prompts:
        for cell in cells:
            if cell.key(prompt) not in store:
                yield cell, prompt


def run_missing(
    cells: Sequence[Cell],
    prompts: Sequence[Prompt],
    store: Store,
    run: Runner,
    minutes: float | None,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run and store what is missing, for at most ``minutes``; returns how many records are still missing then.

    The record that is being made when the time is up is finished.
    """
    todo = list(missing(cells, prompts, store))
    began = clock()
    for done, (cell, prompt) in enumerate(todo):
        spent = clock() - began
        if minutes is not None and spent >= 60 * minutes:
            return len(todo) - done
        store.add(cell.key(prompt), run(cell, prompt))
        per = (clock() - began) / (done + 1)
        left = per * (len(todo) - done - 1) / 60
        progress(f"{done + 1}/{len(todo)} prompt {prompt.index} {cell.name}: {left:.0f} min left")
    return 0


def record_of(result: Continuation) -> dict[str, Any]:
    """Counts of a continuation, for the file."""
    return {
        "tokens": len(result.tokens),
        "rounds": result.rounds,
        "calls": result.calls,
        "proposed": result.proposed,
        "kept_histogram": result.kept_histogram,
        "rule_s": result.rule_s,
        "seconds": result.seconds,
    }
