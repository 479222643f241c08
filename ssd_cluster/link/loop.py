"""The event loop thread that owns every gRPC object of a process; engines talk to it from their own threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ssd_cluster.errors import LinkClosed, LinkError

T = TypeVar("T")

log = logging.getLogger(__name__)


class Closable(Protocol):
    """What a loop closes when it goes: streams and listeners."""

    async def shutdown(self, reason: str) -> None: ...


class LinkLoop:
    """One asyncio loop in one daemon thread. Create one per process and hand it to ``connect`` and ``Listener``.

    Also a context manager: ``with LinkLoop() as loop``.
    """

    def __init__(self, name: str = "ssd-link") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owned: set[Closable] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> bool:
        return self._loop is not None

    def start(self, timeout_s: float = 5.0) -> None:
        """Start the thread and wait until its loop runs; does nothing when it already does.

        Raises:
            LinkError: the loop did not come up within ``timeout_s``.
        """
        with self._lock:
            if self._loop is not None:
                return
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(_report)
            up = threading.Event()
            loop.call_soon(up.set)
            thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
            thread.start()
            if not up.wait(timeout_s):
                loop.call_soon_threadsafe(loop.stop)
                raise LinkError(f"the link's event loop did not start within {timeout_s} s")
            self._loop, self._thread = loop, thread

    def close(self, timeout_s: float = 5.0) -> None:
        """Close every stream and listener, stop the loop and join its thread; safe to call twice.

        Raises:
            LinkError: the thread did not end within ``timeout_s``.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            if thread is threading.current_thread():
                raise LinkError("a link loop cannot be closed from its own thread")
            future = asyncio.run_coroutine_threadsafe(self._wind_up(timeout_s / 2), loop)
            try:
                future.result(timeout_s)
            except concurrent.futures.TimeoutError:
                log.warning("link loop: streams did not close within %.1f s", timeout_s)
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout_s)
            if thread.is_alive():
                raise LinkError(f"the link's event loop did not stop within {timeout_s} s")

    def __enter__(self) -> LinkLoop:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the loop and wait for its result; for threads other than the loop's.

        Raises:
            LinkError: the loop is not running, or the deadline passed (the coroutine is then cancelled).
        """
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise LinkError("the link's event loop is not running")
        if self._thread is threading.current_thread():
            coroutine.close()
            raise LinkError("a blocking call from the link's own thread would never return")
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise LinkError(f"no answer from the link's event loop within {timeout_s} s") from None

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Run a function on the loop soon; from any thread.

        Raises:
            LinkClosed: the loop is not running.
        """
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(callback, *args)
                return
        except RuntimeError:
            pass  # closed between the two lines
        raise LinkClosed("the link's event loop is not running")

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that the loop keeps alive; on the loop's thread only."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def own(self, closable: Closable) -> None:
        """Close this when the loop goes; on the loop's thread only."""
        self._owned.add(closable)

    def disown(self, closable: Closable) -> None:
        self._owned.discard(closable)

    async def _wind_up(self, timeout_s: float) -> None:
        owned = list(self._owned)
        if owned:
            closing = [asyncio.ensure_future(closable.shutdown("the process ends")) for closable in owned]
            await asyncio.wait(closing, timeout=timeout_s)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), BlockingIOError) and "_handle_events" in str(context.get("handle")):
        # gRPC wakes every asyncio loop of the process for each event; all but the first find nothing to read.
        return
    loop.default_exception_handler(context)
