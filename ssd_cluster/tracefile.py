"""Trace files: a stream of msgpack records, written beside an engine without ever holding it up.

The first record is a map that says what follows, the last one ``["end", dropped]``; those between are arrays that start
with their kind. Times are seconds of the machine's monotonic clock, so that the files of one machine can be put
together. A file that was cut off is readable up to the cut.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from ssd_cluster.errors import ConfigError

logger = logging.getLogger(__name__)

FORMAT = "ssd-cluster trace"
VERSION = 1
_FLUSH_S = 0.2
_BUFFERED = 16_384
_JOIN_S = 5.0


class TraceWriter:
    """Packs and writes records on a thread of its own.

    ``put`` only appends to a bounded buffer: a disk that is slower than the engine costs records, which are counted,
    and a disk that fails ends the trace, not the engine.

    Args:
        path: of the file; an existing one is replaced. ``{pid}`` in it stands for this process.
        header: what the records are about.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, buffered: int = _BUFFERED) -> None:
        self.path = Path(str(path).replace("{pid}", str(os.getpid())))
        self.dropped = 0
        self._limit = buffered
        self._records: deque[Sequence[Any]] = deque()
        self._stop = threading.Event()
        try:
            self._file = self.path.open("wb")
            self._file.write(msgpack.packb({"format": FORMAT, "version": VERSION, **header}))
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"cannot write the trace {self.path}: {error}", param="trace") from error
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    def put(self, record: Sequence[Any]) -> None:
        """Queue a record; dropped, and counted, while the buffer is full. For one thread; never blocks."""
        if len(self._records) < self._limit:
            self._records.append(record)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued and end the file; safe to call twice."""
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            with self._file:
                while not self._stop.wait(_FLUSH_S):
                    self._drain()
                self._drain()
                self._file.write(msgpack.packb(["end", self.dropped]))
        except OSError as error:
            self._limit = 0
            self._records.clear()
            logger.error("trace_failed path=%s error=%r", self.path, error)

    def _drain(self) -> None:
        while self._records:
            self._file.write(msgpack.packb(self._records.popleft()))
        self._file.flush()


def read_records(path: Path) -> tuple[dict[str, Any], Iterator[list[Any]]]:
    """The header of a trace, and its records as they were written.

    Raises:
        ConfigError: the file cannot be read or is no trace; while iterating: it is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error}", param="trace") from error
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(content)
    try:
        header = next(unpacker, None)
    except (ValueError, msgpack.UnpackException):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ConfigError(f"{path} is no trace", param="trace")
    if header.get("version") != VERSION:
        raise ConfigError(f"{path} has version {header.get('version')}, this program reads {VERSION}", param="trace")
    return header, _records(path, unpacker)


def _records(path: Path, unpacker: Iterator[Any]) -> Iterator[list[Any]]:
    number = 0
    try:
        for record in unpacker:
            number += 1
            if not isinstance(record, list) or not record:
                raise ValueError("not an array")
            yield record
    except (ValueError, msgpack.UnpackException) as error:
        raise ConfigError(f"{path} is damaged after record {number}: {error}", param="trace") from error
