"""Leases through Serve: one long streaming call per session to the draft deployment, open as long as its session.

The open call is what Serve sees of a session: it counts as load, it is admitted or waits, it ends when either side
dies. The calls live on an event loop of their own: neither the engine nor the replica's loop ever waits for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

from ray import serve

from ssd_cluster.target.leases import Ended, Grant, Granted, LeaseEvent, Revoked, Wish

log = logging.getLogger(__name__)

CLOSE_S = 2.0


class ServeLessor:
    """Asks a draft deployment for leases; implements ``target.leases.Lessor``."""

    def __init__(self, application: str, deployment: str) -> None:
        self._application = application
        self._deployment = deployment
        self._handle: Any = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lessor", daemon=True)
        self._thread.start()

    def acquire(self, session: int, lease: int, wish: Wish, report: Callable[[LeaseEvent], None]) -> None:
        self._call(lambda: self._start(session, lease, wish, report))

    def release(self, lease: int) -> None:
        self._call(lambda: self._stop(lease))

    def close(self) -> None:
        """Give everything back and end the thread; safe to call twice."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._stop_all(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _call(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed: there is nothing left to ask for or to give back
            self._loop.call_soon_threadsafe(work)

    def _start(self, session: int, lease: int, wish: Wish, report: Callable[[LeaseEvent], None]) -> None:
        task = self._loop.create_task(self._hold(session, lease, wish, report))
        self._tasks[lease] = task
        task.add_done_callback(lambda _: self._tasks.pop(lease, None))

    def _stop(self, lease: int) -> None:
        task = self._tasks.get(lease)
        if task is not None:
            task.cancel()

    async def _stop_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, session: int, lease: int, wish: Wish, report: Callable[[LeaseEvent], None]) -> None:
        """Keep one call open; a call that waits in Serve's queue has no deadline, for it is what scales the pool up."""
        response = None
        try:
            if self._handle is None:
                self._handle = serve.get_deployment_handle(self._deployment, app_name=self._application)
            streaming = self._handle.options(stream=True, session_id=f"{session:016x}")
            response = streaming.lease.remote(session, dataclasses.asdict(wish))
            async for item in response:
                if "revoked" in item:
                    report(Revoked(lease, item["revoked"]))
                elif "endpoint" in item:
                    report(Granted(lease, Grant(item["replica"], item["endpoint"], item["incarnation"])))
            report(Ended(lease, "the draft has ended it"))
        except Exception as error:  # Serve and Ray raise many kinds; all of them mean that there is no lease
            log.info("lease_ended application=%s error=%r", self._application, str(error)[:200])
            report(Ended(lease, type(error).__name__))
        finally:
            if response is not None:
                response.cancel()
