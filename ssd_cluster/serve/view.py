"""What ``GET /v1/cluster`` shows: every target and draft replica of the cluster, asked directly.

The replicas' actors are asked, not the deployments: a call through a handle reaches one replica of its choice, and
waits where all of them hold as many leases as they may.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve._private.api import _get_global_client

log = logging.getLogger(__name__)

ANSWER_S = 2.0
DRAFT_FIELDS = (
    "endpoint",
    "pid",
    "sessions",
    "session_credit",
    "leases",
    "rows",
    "row_credit",
    "lateness",
    "draining",
    "targets",
)
_NAMESPACE = "serve"


def cluster_view() -> dict[str, Any]:
    """``targets`` and ``drafts``, one entry per replica; ``unreachable``: replicas that did not answer in time."""
    view: dict[str, Any] = {"targets": [], "drafts": [], "unreachable": []}
    for place, status in _ask_all():
        kind = status.get("kind") if status is not None else None
        try:
            if status is None:
                view["unreachable"].append(place)
            elif kind == "target":
                view["targets"].append(place | target_entry(status))
            elif kind == "draft":
                view["drafts"].append(place | draft_entry(status))
        except (KeyError, TypeError):  # of another release, or not quite there
            log.warning("status_unreadable replica=%s", place["replica"], exc_info=True)
            view["unreachable"].append(place)
    return view


def target_entry(status: dict[str, Any]) -> dict[str, Any]:
    """A target's part of the view, from its status."""
    return {
        **{name: status[name] for name in ("model", "mode", "speculation", "running", "waiting", "leases")},
        "refused": status.get("refused"),
        "drafts": [link | {"hit_rate": hit_rate(link["lookups"])} for link in status["links"]],
    }


def draft_entry(status: dict[str, Any]) -> dict[str, Any]:
    """A draft's part of the view, from its status."""
    return {
        **{name: status[name] for name in DRAFT_FIELDS},
        "refused": status.get("refused"),
        "free_rows": max(0, status["row_credit"] - status["rows"]),
    }


def hit_rate(lookups: dict[str, int]) -> float | None:
    """Share of cache lookups that were hits; None before the first one."""
    total = sum(lookups.values())
    return lookups.get("hit", 0) / total if total else None


def _ask_all() -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    asked = [(place, _ask(actor)) for place, actor in _replicas()]
    refs = [ref for _, ref in asked if ref is not None]
    ready = ray.wait(refs, num_returns=len(refs), timeout=ANSWER_S)[0] if refs else []
    return [(place, _answer(ref) if ref in ready else None) for place, ref in asked]


def _replicas() -> list[tuple[dict[str, Any], str]]:
    """Where each replica is, and the name of its actor."""
    return places(_get_global_client().get_serve_details()["applications"])


def places(applications: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Replicas in Serve's details: (application, replica, node, state), and the name of the actor.

    A replica that is about to start has no node and may have no actor: None, and an empty name.
    """
    found = []
    for application, details in applications.items():
        for deployment in details["deployments"].values():
            for replica in deployment["replicas"]:
                place = {
                    "application": application,
                    "replica": replica["replica_id"],
                    "node": replica.get("node_ip"),
                    "state": replica["state"],
                }
                found.append((place, replica.get("actor_name") or ""))
    return found


def _ask(actor: str) -> Any:
    if not actor:
        return None
    try:
        return ray.get_actor(actor, namespace=_NAMESPACE).record_routing_stats.remote()
    except (ValueError, RayError):  # it is just starting, or has just gone
        return None
    except Exception:  # what Ray says of an actor between the two is not documented
        log.warning("replica_unasked actor=%s", actor, exc_info=True)
        return None


def _answer(ref: Any) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = ray.get(ref)
    except RayError:
        return None
    except Exception:  # an error of the replica's own that Ray passes on as it is
        log.warning("replica_answer", exc_info=True)
        return None
    return status or {}
