"""A Ray of our own on this machine: started on loopback in a private folder, gone without a trace afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ssd_cluster.config import set_ray_environment
from ssd_cluster.errors import StartupError

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 100 * 1024 * 1024  # the least Ray takes without a warning; tokens do not travel through it
KILL_AFTER_S = 3.0
SHUTDOWN_S = 10.0
QUIET = {"log_level": "WARNING", "enable_access_log": False}  # Serve's own logs
_ESSENTIAL = ("gcs_server", "raylet")


class LocalRay:
    """Ray and Serve of one process."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._started: list[psutil.Process] = []
        self._essential: list[psutil.Process] = []

    def start(self, num_cpus: float, host: str, port: int) -> None:
        """Start Ray (head node only, loopback, no dashboard) and Serve's HTTP proxy.

        Raises:
            StartupError: Ray does not start, or had been imported with other settings.
        """
        set_ray_environment()
        import ray
        from ray import serve
        from ray._private import ray_constants

        if ray_constants.ENABLE_RAY_CLUSTER:  # read at ray's import: its servers would listen on every address
            raise StartupError("ray was imported before ssd_cluster.config.set_ray_environment() was called")
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        # Ray puts Unix sockets there, whose names may not be long: a deep TMPDIR would not do.
        parent = "/tmp" if Path("/tmp").is_dir() else None
        self._folder = Path(tempfile.mkdtemp(prefix=f"ssd-cluster-{os.getpid()}-", dir=parent))
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=None,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(self._folder),
            )
            self._remember()
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": host, "port": port},
                logging_config=QUIET | {"log_level": "ERROR"},  # of the controller
            )
        except Exception as error:
            raise StartupError(f"Ray does not start: {_first_line(error)}") from error
        finally:
            self._remember()

    def alive(self) -> bool:
        """Whether Ray's own servers still run."""
        return bool(self._essential) and all(_runs(process) for process in self._essential)

    def stop(self, applications: list[str], deadline_s: float, give_up: Callable[[], bool]) -> None:
        """Stop everything that was started.

        Args:
            applications: to delete first, in this order, so that their replicas finish what they do.
            deadline_s: how long that may take.
            give_up: asked again and again; True ends all politeness.
        """
        self._remember()
        if self._essential:
            import ray

            _bounded(lambda: _delete(applications), deadline_s, give_up)
            _bounded(ray.shutdown, SHUTDOWN_S, give_up)
        self._kill_rest()
        self._remove_folder()

    def _remember(self) -> None:
        """Take down every process below ours: what Ray starts is found here even after its parent has gone."""
        known = {(p.pid, p.create_time()) for p in self._started}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if (process.pid, process.create_time()) not in known:
                    self._started.append(process)
                    if process.name().startswith(_ESSENTIAL):
                        self._essential.append(process)

    def _kill_rest(self) -> None:
        """Give the remaining processes a moment, then kill them; psutil never mistakes a reused pid."""
        psutil.wait_procs(self._started, timeout=KILL_AFTER_S)
        for process in self._essential:
            with contextlib.suppress(psutil.Error):
                process.suspend()  # a stopped raylet starts no workers that we would miss
        self._remember()
        for process in self._started:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(self._started, timeout=KILL_AFTER_S)
        self._started, self._essential = [], []

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is None:
            return
        deadline = time.monotonic() + KILL_AFTER_S
        while folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05 if folder.exists() else 0)
        if folder.exists():
            log.warning("cannot remove %s", folder)


def _delete(applications: list[str]) -> None:
    from ray import serve

    for name in applications:
        serve.delete(name)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _bounded(work: Callable[[], Any], deadline_s: float, give_up: Callable[[], bool]) -> None:
    def run() -> None:
        try:
            work()
        except Exception:
            log.debug("stopping Ray failed", exc_info=True)  # force follows

    thread = threading.Thread(target=run, name="stop-ray", daemon=True)
    thread.start()
    deadline = time.monotonic() + deadline_s
    while thread.is_alive() and time.monotonic() < deadline and not give_up():
        thread.join(0.1)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
