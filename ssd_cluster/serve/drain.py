"""Tell a replica that it is about to go while its requests still run.

Serve waits for running requests first and calls the replica's destructor then; with leases open as long as sessions
that would be when the last session has ended. There is no hook for the moment before (Ray 2.60), so the method that
begins it is wrapped; a test scales down with streams open and looks where the sessions went.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.serve._private import replica


def before_shutdown(announce: Callable[[], None]) -> None:
    """Call ``announce`` when Serve begins to stop the replica of this process; it must return at once."""
    begin = replica.Replica.perform_graceful_shutdown

    async def announced(self: Any) -> None:
        announce()
        await begin(self)

    replica.Replica.perform_graceful_shutdown = announced
