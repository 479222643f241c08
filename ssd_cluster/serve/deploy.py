"""``ssd-cluster deploy FILE``: check everything, hand the file to a running cluster's Serve, wait until it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from ssd_cluster.config import HttpSettings
from ssd_cluster.config_link import is_loopback
from ssd_cluster.errors import StartupError
from ssd_cluster.serve.agreement import Findings, disagreements
from ssd_cluster.serve.args import ServeFile
from ssd_cluster.serve.cluster import RayCluster
from ssd_cluster.serve.files import read_serve_file, read_yaml, refuse
from ssd_cluster.serve.fit import Fit, Node, fit, groups_of
from ssd_cluster.serve.here import models_here
from ssd_cluster.serve.placement import matches
from ssd_cluster.serve.saying import reason, say, say_ready

DEADLINE_S = 1800.0
POLL_S = 0.5
HEARTBEAT_S = 15.0


def deploy(path: Path, address: str, *, dry_run: bool, nodes_may_come: bool, deadline_s: float) -> int:
    """Deploy a file, or with ``dry_run`` only say what would happen.

    Args:
        path: a Serve configuration file.
        address: of the cluster's dashboard.
        dry_run: change nothing.
        nodes_may_come: the cluster adds nodes by itself, so that what does not fit now is no mistake.
        deadline_s: how long applications may take to run.

    Returns:
        0 once every application runs.

    Raises:
        ConfigError: something is wrong with the file, or it does not fit the cluster; one line per mistake.
        StartupError: the cluster does not answer, or an application does not run; says which and why.
    """
    file = read_serve_file(path)
    say("checking the models")
    found = disagreements(file) + models_here(file)
    try:
        cluster = RayCluster.at(address)
        nodes, details = cluster.nodes(), cluster.details()
    except StartupError:
        refuse(path, found.mistakes)
        raise
    placed = fit(groups_of(file), nodes)
    found += _reachable(file, nodes) + _ports_in_use(file, details)
    found += Findings(notes=placed.mistakes) if nodes_may_come else Findings(mistakes=placed.mistakes)
    refuse(path, found.mistakes)
    _say_plan(placed, found.notes, nodes)
    if dry_run:
        say(f"nothing was deployed (--dry-run); {cluster.address} would take this file")
        return 0
    cluster.deploy(read_yaml(path))
    wait_until_running(file, cluster.details, time.monotonic() + deadline_s)
    say_ready(file, file.http_options, _host(file.http_options, nodes))
    return 0


def wait_until_running(
    file: ServeFile,
    details: Callable[[], Mapping[str, Any]],
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Say what happens until every application runs.

    Args:
        file: that was deployed.
        details: what Serve says of itself, as in ``RayCluster.details``.
        deadline: of ``clock``.
        clock: seconds, monotonic.
        sleep: waits so many seconds.

    Raises:
        StartupError: an application has failed, or does not run at the deadline; says why, one line for each.
    """
    waiting = {app.name: "" for app in file.applications}
    failed: dict[str, str] = {}
    said = clock()
    while waiting:
        applications = _applications(details, patient=clock() < deadline)
        for name in list(waiting):
            state = applications.get(name, {})
            status = state.get("status", "NOT_STARTED")
            if status == "RUNNING":
                del waiting[name]
                say(f"{name} runs")
            elif status == "DEPLOY_FAILED":
                del waiting[name]
                failed[name] = reason(_messages(state))
                say(f"{name} does not run: {failed[name]}")
            elif (progress := _progress(state)) != waiting[name]:
                waiting[name] = progress
                said = clock()
                say(f"{name}: {progress}")
        if waiting and clock() >= deadline:
            late = {name: _waits_for(applications.get(name, {})) for name in waiting}
            failed |= {name: f"it was not running in time: {why}" for name, why in late.items()}
            break
        if waiting and clock() - said >= HEARTBEAT_S:
            said = clock()
            say("still waiting for " + "; ".join(f"{n}: {_waits_for(applications.get(n, {}))}" for n in waiting))
        sleep(POLL_S if waiting else 0)
    if failed:
        raise StartupError("\n".join(f"{name} does not run: {why}" for name, why in failed.items()))


def _applications(details: Callable[[], Mapping[str, Any]], *, patient: bool) -> Mapping[str, Any]:
    """Applications by name; none while a busy dashboard does not answer, unless it is too late for patience."""
    try:
        found: Mapping[str, Any] = details().get("applications", {})
    except StartupError as error:
        if not patient:
            raise
        say(f"note: {error.message}")
        return {}
    return found


def _messages(state: Mapping[str, Any]) -> list[str]:
    deployments = state.get("deployments", {}).values()
    return [str(deployment.get("message") or "") for deployment in deployments] + [str(state.get("message") or "")]


def _progress(state: Mapping[str, Any]) -> str:
    """Replicas by state, such as ``1 RUNNING, 2 STARTING``."""
    replicas = [replica["state"] for d in state.get("deployments", {}).values() for replica in d.get("replicas", [])]
    counts = ", ".join(f"{len(list(same))} {name}" for name, same in groupby(sorted(replicas)))
    return counts or "preparing"


def _waits_for(state: Mapping[str, Any]) -> str:
    """What Serve says of it, of a traceback the reason; where it says nothing, how far it is."""
    said = [message for message in _messages(state) if message.strip()]
    if not said:
        return _progress(state)
    return reason(said) if any("Traceback" in message for message in said) else " ".join(" ".join(said).split())


def _reachable(file: ServeFile, nodes: list[Node]) -> Findings:
    """Drafts that listen on loopback although a target may be on another node; HTTP that no other machine reaches."""
    groups = {group.where: group for group in groups_of(file)}

    def homes(name: str) -> set[str]:
        return {node.name for node in nodes if matches(groups[name].selector, node.labels)}

    mistakes, notes = [], []
    drafts = {app.name: app.args.draft for app in file.applications if app.args.draft is not None}
    for app in file.targets:
        pool = app.args.target.draft_application if app.args.target is not None else None
        if pool is not None and is_loopback(drafts[pool].host) and len(homes(app.name) | homes(pool)) > 1:
            mistakes.append(
                f"{pool}: host {drafts[pool].host} is reached from its own node only, and {app.name} may run on "
                "another one: set draft.host: 0.0.0.0 with link.tls or link.token_file, or pin both to one node with "
                "placement.label_selector"
            )
    if is_loopback(file.http_options.host) and len(nodes) > 1:
        notes.append(f"HTTP listens on {file.http_options.host} of each node: only programs there reach it")
    return Findings(tuple(mistakes), tuple(notes))


def _ports_in_use(file: ServeFile, details: Mapping[str, Any]) -> Findings:
    """Serve keeps the HTTP options that it was started with."""
    now, wanted = details.get("http_options") or {}, file.http_options
    if not details.get("controller_info", {}).get("node_id") or "port" not in now:
        return Findings()  # Serve does not run yet
    if (now.get("host"), now.get("port")) == (wanted.host, wanted.port):
        return Findings()
    return Findings(
        mistakes=(
            f"http_options: Serve listens on {now.get('host')}:{now.get('port')} of this cluster already, and keeps to "
            f"it: use that, or end it with `serve shutdown` to listen on {wanted.host}:{wanted.port}",
        )
    )


def _say_plan(placed: Fit, notes: tuple[str, ...], nodes: list[Node]) -> None:
    for where, same in groupby(sorted(placed.places)):
        say(f"{where[0]}: {len(list(same))} fit on {where[1]}")
    if placed.unsure:
        say("note: no place for everything was found, and none was ruled out: Ray decides")
    for note in notes:
        say(f"note: {note}")
    if not placed.unsure and not placed.mistakes:
        say(f"everything fits the {len(nodes)} nodes of the cluster")


def _host(http: HttpSettings, nodes: list[Node]) -> str | None:
    """A node's address that clients can use; None: the one that is configured."""
    anywhere = http.host in ("0.0.0.0", "::")
    heads = [node.name for node in nodes if "node:__internal_head__" in node.resources]
    return heads[0] if anywhere and heads else None
