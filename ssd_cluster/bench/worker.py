"""The process behind a ``Worker``: reads commands on stdin, writes one JSON object a line on stdout.

In: ``{"start": ...}`` once, then ``{"run": Workload}`` any number of times; the end of stdin ends the process.
Out: ``{"ready": true, "info"}``, ``{"progress": tokens}``, ``{"record": RunRecord}``, ``{"error": message}``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, Any

from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.spec import EngineSpec
from ssd_cluster.errors import SsdClusterError


@dataclass(frozen=True, slots=True)
class Built:
    """What a worker is ready with: ``info`` for the report, and how it answers a workload."""

    info: dict[str, Any]
    run: Callable[[Workload], RunRecord]


Build = Callable[[Any, Callable[[int], None]], AbstractContextManager[Built]]
"""The content of ``start`` and a function that takes the tokens so far -> something ready to run."""


def serve_parent(build: Build) -> int:
    """Serve one parent; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    out = _claim_stdout()

    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    commands = _commands(sys.stdin)
    try:
        with build(next(commands)["start"], lambda tokens: say(progress=tokens)) as built:
            say(ready=True, info=built.info)
            for command in commands:
                record = built.run(Workload.model_validate(command["run"]))
                say(record=record.model_dump(mode="json"))
    except BrokenPipeError:
        return 1
    except SsdClusterError as error:
        say(error=error.message)
        return 1
    except StopIteration:
        pass
    return 0


@contextmanager
def _engine(start: Any, progress: Callable[[int], None]) -> Iterator[Built]:
    spec = EngineSpec.model_validate(start)
    from ssd_cluster.bench.local import LocalEngine

    with LocalEngine(spec, progress=progress) as local:
        yield Built(local.info, local.driver.run)


def _commands(lines: IO[str]) -> Iterator[dict[str, Any]]:
    for line in iter(lines.readline, ""):
        yield json.loads(line)


def _claim_stdout() -> IO[str]:
    """Keep the pipe to the parent for messages; whatever else prints goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


if __name__ == "__main__":
    sys.exit(serve_parent(_engine))
