"""What the view of a cluster makes of Serve's details."""

from __future__ import annotations

from ssd_cluster.serve.view import places


def test_a_replica_that_is_about_to_start_has_no_node_yet() -> None:
    running = {"replica_id": "a", "state": "RUNNING", "node_ip": "10.0.0.1", "actor_name": "SERVE_REPLICA::a"}
    starting = {"replica_id": "b", "state": "STARTING"}
    details = {"drafts": {"deployments": {"draft": {"replicas": [running, starting]}}}}
    (first, actor), (second, none) = places(details)
    assert (first["node"], first["state"], actor) == ("10.0.0.1", "RUNNING", "SERVE_REPLICA::a")
    assert (second["node"], second["state"], none) == (None, "STARTING", "")
