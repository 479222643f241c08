"""``ssd-cluster serve FILE``: a configuration file served on this machine until Ctrl-C.

Nothing here imports ray or torch before the checks have passed.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ssd_cluster.config import Device, HttpSettings, cache_dir
from ssd_cluster.errors import SsdClusterError, StartupError
from ssd_cluster.serve.agreement import disagreements
from ssd_cluster.serve.args import ServeFile
from ssd_cluster.serve.checks import (
    models_of,
    only_instance,
    pairs_of,
    require_cores,
    require_free_port,
    require_split,
    usable_cores,
)
from ssd_cluster.serve.files import read_serve_file, refuse
from ssd_cluster.serve.fit import Node, fit, groups_of
from ssd_cluster.serve.local_ray import QUIET, LocalRay
from ssd_cluster.serve.saying import base_url, reason, say, say_ready
from ssd_cluster.serve.signals import Interrupted, StopSignals

log = logging.getLogger(__name__)

READY_DEADLINE_S = 600.0
STOP_DEADLINE_S = 30.0
POLL_S = 0.5
WATCH_S = 1.0
HEARTBEAT_S = 15.0
INTERRUPTED = 130


def serve(path: Path, *, port: int | None = None, ready_deadline_s: float = READY_DEADLINE_S) -> int:
    """Serve a file until Ctrl-C or SIGTERM.

    Args:
        path: a Serve configuration file.
        port: HTTP port instead of that of the file.
        ready_deadline_s: how long loading may take.

    Returns:
        0 after it has served, 130 if it was interrupted before it was ready.

    Raises:
        ConfigError: the file is wrong; one line per mistake.
        SsdClusterError: it cannot be served, or has stopped by itself. Nothing is left behind.
    """
    ready = threading.Event()
    signals = StopSignals()
    try:
        with signals:
            _serve(path, port, signals, ready, ready_deadline_s)
    except Interrupted:
        return 0 if ready.is_set() else INTERRUPTED
    except Exception as error:
        if signals.requested.is_set():  # a Ctrl-C reaches what Ray has started as well: that then fails on us
            return 0 if ready.is_set() else INTERRUPTED
        if isinstance(error, SsdClusterError):
            raise
        log.debug("serve failed", exc_info=True)
        raise StartupError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    return 0


def _serve(path: Path, port: int | None, signals: StopSignals, ready: threading.Event, deadline_s: float) -> None:
    file = read_serve_file(path)
    http = _http(file, port)
    refuse(path, disagreements(file).mistakes)
    require_cores(file, usable_cores())
    refuse(path, fit(groups_of(file), [_this_machine(file)]).mistakes)
    with only_instance(cache_dir() / "serve.lock"):
        require_free_port(http.host, http.port)
        _fetch_models(file)
        with running(file, http, signals, time.monotonic() + deadline_s) as local_ray:
            ready.set()
            say_ready(file, http, ends=" (Ctrl-C stops it)")
            _watch(local_ray, signals)


def _watch(local_ray: LocalRay, signals: StopSignals) -> None:
    """Say when an application falls over and when it is back, until a signal comes."""
    from ray import serve

    down: set[str] = set()
    while not signals.requested.wait(WATCH_S):
        if not local_ray.alive():
            raise StartupError("Ray has ended unexpectedly; start again")
        for name, state in serve.status().applications.items():
            if state.status == "RUNNING" and name in down:
                down.remove(name)
                say(f"{name} is back")
            elif state.status != "RUNNING" and name not in down:
                down.add(name)
                say(f"{name} has lost a replica; Serve starts another")


def _http(file: ServeFile, port: int | None) -> HttpSettings:
    if port is None:
        return file.http_options
    if not 1 <= port <= 65535:
        raise StartupError(f"port {port} is not between 1 and 65535")
    return file.http_options.model_copy(update={"port": port})


def _fetch_models(file: ServeFile) -> None:
    say("checking the models")
    from ssd_cluster.model.checkpoint import resolve_checkpoint

    for path in dict.fromkeys(model.path for app in file.applications for _, model in models_of(app)):
        resolve_checkpoint(path, say)
    for app in file.applications:
        for place, model in models_of(app):
            require_split(place, model)
    from ssd_cluster.text.pairs import require_same_ids

    for target, draft in dict.fromkeys(pairs_of(file)):
        require_same_ids(target, draft)


@contextmanager
def running(
    file: ServeFile, http: HttpSettings, signals: StopSignals, deadline: float, spare_cpus: int = 0
) -> Iterator[LocalRay]:
    """Ray and all applications, ready; stopped at the end, however that comes.

    ``spare_cpus``: room for replicas that are not in the file.

    Raises:
        StartupError: something does not start by ``deadline`` (of time.monotonic).
        Interrupted: a signal came first.
    """
    local_ray = LocalRay()
    ready = False
    try:
        say("starting Ray")
        with signals.deferred():
            try:
                local_ray.start(_cpus(file) + spare_cpus, http.host, http.port)
            finally:
                signals.install()
        _deploy(file, signals)
        _wait_ready(file, deadline)
        _wait_answering(file, http, deadline)
        ready = True
        yield local_ray
    finally:
        with signals.ignored():
            say("stopping (Ctrl-C again: at once)" if ready else "stopping")
            targets_first = sorted(file.applications, key=lambda app: app.args.target is None)
            names = [app.name for app in targets_first if ready]
            local_ray.stop(names, STOP_DEADLINE_S, lambda: signals.count > 1)


def _cpus(file: ServeFile) -> float:
    """Enough for Ray to place every replica; which cores they use is settled by their own pinning."""
    wanted = sum(
        group.replicas * group.ranks * group.bundle.get("CPU", 0.0) for group in groups_of(file, everything=True)
    )
    return max(wanted, len(usable_cores()))


def _this_machine(file: ServeFile) -> Node:
    """What the Ray started here has: no labels and no custom resources."""
    resources = {"CPU": _cpus(file), "memory": float(psutil.virtual_memory().total)}
    if any(model.device is Device.CUDA for app in file.applications for _, model in models_of(app)):
        import torch

        resources["GPU"] = float(torch.cuda.device_count())
    return Node("this machine", resources)


def _deploy(file: ServeFile, signals: StopSignals) -> None:
    from ray import serve

    from ssd_cluster.serve.app import build_with

    with signals.deferred():
        serve.run_many(
            [
                serve.RunTarget(
                    target=build_with(app.args, app.num_replicas, app.user_config),
                    name=app.name,
                    route_prefix=app.route_prefix,
                    logging_config=QUIET,
                )
                for app in file.applications
            ],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )


def _wait_ready(file: ServeFile, deadline: float) -> None:
    from ray import serve

    waiting = [app.name for app in file.applications]
    say(f"loading {', '.join(waiting)}")
    said = time.monotonic()
    while waiting:
        states = serve.status().applications
        for name in list(waiting):
            state = states.get(name)
            if state is not None and state.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                messages = [str(deployment.message) for deployment in state.deployments.values()] + [str(state.message)]
                raise StartupError(f"{name} does not start: {reason(messages)}")
            if state is not None and state.status == "RUNNING":
                waiting.remove(name)
                say(f"{name} is ready")
        if waiting and time.monotonic() > deadline:
            raise StartupError(f"{', '.join(waiting)} did not become ready in time")
        if waiting and time.monotonic() - said > HEARTBEAT_S:
            said = time.monotonic()
            say(f"still loading {', '.join(waiting)}")
        time.sleep(POLL_S if waiting else 0)


def _wait_answering(file: ServeFile, http: HttpSettings, deadline: float) -> None:
    """The proxy learns of an application a moment after it runs."""
    for app in file.targets:
        url = f"{base_url(http, app)}/health"
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5.0):
                    break
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise StartupError(f"{url} does not answer: {error}") from error
                time.sleep(0.1)
