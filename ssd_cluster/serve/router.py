"""Serve's request router of the draft deployment: it decides which replica a lease is asked from."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from ssd_cluster.serve.ranking import Candidate, rank


class DraftRouter(RequestRouter):  # type: ignore[misc]
    """Affinity to the target's links, then free rows, then spill; see ``ranking.rank``.

    Runs in each caller's process. Serve asks again, with growing pauses, while every replica in the order has as many
    leases as it may hold: the request then waits, and is the signal to scale up.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The running replicas in the order in which they are to be tried."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        candidates = [Candidate.of(name, replica.routing_stats or {}) for name, replica in by_name.items()]
        wish = _wish_of(pending_request)
        groups = rank(candidates, wish.get("rows", 0), wish.get("linked", ()), wish.get("exclude", ()))
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[by_name[name] for name in group] for group in groups]


def _wish_of(request: PendingRequest | None) -> dict[str, Any]:
    """The wish of a lease call; other calls have none."""
    if request is None or request.metadata.call_method != "lease" or len(request.args) < 2:
        return {}
    wish: dict[str, Any] = request.args[1]
    return wish
