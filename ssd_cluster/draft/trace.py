"""Writes what a draft computed and when its blocks left.

Records: ``["step", start, end, rows, [[session, kind, rows], ...]]`` for every forward, kinds as in the metrics:
prefill, glue, tree, jit; ``["block", time, session, branches, tokens, complete]`` for every pushed block.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_cluster.config import DraftSettings
from ssd_cluster.tracefile import TraceWriter


class DraftTrace:
    """Turns forwards and blocks into records; used by the engine's thread."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer

    @classmethod
    def of(cls, settings: DraftSettings) -> DraftTrace | None:
        """The trace that the settings ask for; None if they ask for none.

        Raises:
            ConfigError: its file cannot be written.
        """
        if settings.trace is None:
            return None
        header = {"role": "draft", "k_max": settings.k_max, "fanout": settings.fanout.value}
        return cls(TraceWriter(settings.trace, header))

    def step(self, start: float, end: float, rows: int, runs: Sequence[tuple[int, str, int]]) -> None:
        """One forward over ``rows`` tokens; ``runs``: session, kind and rows of each span."""
        self._writer.put(("step", start, end, rows, runs))

    def block(self, now: float, session: int, branches: int, tokens: int, complete: bool) -> None:
        """A block leaves."""
        self._writer.put(("block", now, session, branches, tokens, complete))

    def close(self) -> None:
        """Write what is left and end the file."""
        self._writer.close()
