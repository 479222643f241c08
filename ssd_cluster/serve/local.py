"""``ssd-cluster serve FILE``: a configuration file served on this machine until Ctrl-C.

Nothing here imports ray or torch before the checks have passed.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssd_cluster.config import HttpSettings, cache_dir
from ssd_cluster.config_link import is_loopback
from ssd_cluster.errors import SsdClusterError, StartupError
from ssd_cluster.serve.args import Application, ServeFile
from ssd_cluster.serve.checks import (
    models_of,
    only_instance,
    pairs_of,
    require_cores,
    require_free_port,
    require_split,
    usable_cores,
)
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.local_ray import QUIET, LocalRay
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
    require_cores(file, usable_cores())
    with only_instance(cache_dir() / "serve.lock"):
        require_free_port(http.host, http.port)
        _fetch_models(file)
        with running(file, http, signals, time.monotonic() + deadline_s) as local_ray:
            ready.set()
            _say_ready(file, http)
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
                _say(f"{name} is back")
            elif state.status != "RUNNING" and name not in down:
                down.add(name)
                _say(f"{name} has lost a replica; Serve starts another")


def _http(file: ServeFile, port: int | None) -> HttpSettings:
    if port is None:
        return file.http_options
    if not 1 <= port <= 65535:
        raise StartupError(f"port {port} is not between 1 and 65535")
    return file.http_options.model_copy(update={"port": port})


def _fetch_models(file: ServeFile) -> None:
    _say("checking the models")
    from ssd_cluster.model.checkpoint import resolve_checkpoint

    for path in dict.fromkeys(model.path for app in file.applications for _, model in models_of(app)):
        resolve_checkpoint(path, _say)
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
        _say("starting Ray")
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
            _say("stopping (Ctrl-C again: at once)" if ready else "stopping")
            targets_first = sorted(file.applications, key=lambda app: app.args.target is None)
            names = [app.name for app in targets_first if ready]
            local_ray.stop(names, STOP_DEADLINE_S, lambda: signals.count > 1)


def _cpus(file: ServeFile) -> float:
    """Enough for Ray to place every replica; which cores they use is settled by their own pinning."""
    wanted = sum(
        app.num_replicas * m.compute_threads * m.tensor_parallel for app in file.applications for _, m in models_of(app)
    )
    return max(wanted, len(usable_cores()))


def _deploy(file: ServeFile, signals: StopSignals) -> None:
    from ray import serve

    from ssd_cluster.serve.app import build_with

    with signals.deferred():
        serve.run_many(
            [
                serve.RunTarget(
                    target=build_with(app.args, app.num_replicas),
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
    _say(f"loading {', '.join(waiting)}")
    said = time.monotonic()
    while waiting:
        states = serve.status().applications
        for name in list(waiting):
            state = states.get(name)
            if state is not None and state.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise StartupError(f"{name} does not start: {_reason(state)}")
            if state is not None and state.status == "RUNNING":
                waiting.remove(name)
                _say(f"{name} is ready")
        if waiting and time.monotonic() > deadline:
            raise StartupError(f"{', '.join(waiting)} did not become ready in time")
        if waiting and time.monotonic() - said > HEARTBEAT_S:
            said = time.monotonic()
            _say(f"still loading {', '.join(waiting)}")
        time.sleep(POLL_S if waiting else 0)


def _reason(state: Any) -> str:
    """The line of a deployment's traceback that says what was wrong."""
    messages = [str(deployment.message) for deployment in state.deployments.values()] + [str(state.message)]
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("ssd_cluster.errors.")]
    errors = ours or [line for line in lines if "Error: " in line or "Exception: " in line]
    chosen = (errors or lines or ["no reason given"])[-1]
    return chosen.split(": ", 1)[1] if ours else chosen


def _wait_answering(file: ServeFile, http: HttpSettings, deadline: float) -> None:
    """The proxy learns of an application a moment after it runs."""
    for app in file.targets:
        url = f"{_base_url(http, app)}/health"
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5.0):
                    break
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise StartupError(f"{url} does not answer: {error}") from error
                time.sleep(0.1)


def _base_url(http: HttpSettings, app: Application) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(http.host, http.host)
    return f"http://{host}:{http.port}{(app.route_prefix or '').rstrip('/')}"


def _say_ready(file: ServeFile, http: HttpSettings) -> None:
    for app in file.targets:
        target = app.args.target
        if target is None:
            continue
        base = _base_url(http, app)
        question = [{"role": "user", "content": "Why is the sky blue?"}]
        body = json.dumps({"model": target.name, "messages": question, "max_tokens": 128, "stream": True})
        key = "" if target.http.api_keys_file is None else " -H 'authorization: Bearer KEY'"
        _say(f"serving {target.name} on {base}/v1 (Ctrl-C stops it); try:")
        if target.http.allow_open and not is_loopback(http.host):
            _say(f"warning: {base} asks for no API key (target.http.allow_open): whoever reaches it may use the model")
        command = f"curl -N {base}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'"
        sys.stdout.write(f"\n  {command}\n\n")
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stdout.write(f"[ssd-cluster] {line}\n")
    sys.stdout.flush()
