"""The process behind ``WorkerEngine``: reads commands on stdin, writes one JSON object a line on stdout.

In: ``{"start": EngineSpec}`` once, then ``{"run": Workload}`` any number of times; the end of stdin ends the process.
Out: ``{"ready": true, "info"}``, ``{"progress": tokens}``, ``{"record": RunRecord}``, ``{"error": message}``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.spec import EngineSpec
from ssd_cluster.errors import SsdClusterError


def main() -> int:
    """Serve one parent; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    out = _claim_stdout()

    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    commands = _commands(sys.stdin)
    try:
        spec = EngineSpec.model_validate(next(commands)["start"])
        from ssd_cluster.bench.local import LocalEngine

        with LocalEngine(spec, progress=lambda tokens: say(progress=tokens)) as local:
            say(ready=True, info=local.info)
            for command in commands:
                record = local.driver.run(Workload.model_validate(command["run"]))
                say(record=record.model_dump(mode="json"))
    except BrokenPipeError:
        return 1
    except SsdClusterError as error:
        say(error=error.message)
        return 1
    except StopIteration:
        pass
    return 0


def _commands(lines: IO[str]) -> Iterator[dict[str, Any]]:
    for line in iter(lines.readline, ""):
        yield json.loads(line)


def _claim_stdout() -> IO[str]:
    """Keep the pipe to the parent for messages; whatever else prints goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


if __name__ == "__main__":
    sys.exit(main())
