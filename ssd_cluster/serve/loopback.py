"""Keep Serve's replicas off the network where Ray itself stays on loopback.

Each replica of Serve opens a gRPC port for calls between deployments. It binds it to every interface, without
credentials, and it unpickles what comes in: on a laptop that would let the whole network run code. There is no setting
for the address (Ray 2.60), so the function that binds it is wrapped; a test looks at all listening ports.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import ray
from ray.serve._private import replica

_ANYWHERE = "[::]:"


def keep_on_loopback() -> None:
    """Bind what this replica opens from now on to the node's address if that is a loopback one; safe to call twice."""
    address = ray.util.get_node_ip_address()
    bind = replica.add_port_to_grpc_server
    if not ipaddress.ip_address(address).is_loopback or getattr(bind, "on_loopback", False):
        return

    def bind_on_loopback(server: Any, where: str) -> Any:
        return bind(server, where.replace(_ANYWHERE, f"{address}:") if where.startswith(_ANYWHERE) else where)

    bind_on_loopback.on_loopback = True  # type: ignore[attr-defined]
    replica.add_port_to_grpc_server = bind_on_loopback
