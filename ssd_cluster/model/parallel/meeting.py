"""Where ranks meet before they exchange tensors: a key-value store at rank 0, on one address only."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore

from ssd_cluster.errors import RankError, StartupError

_ACCEPT_S = 0.2


def listen(address: str) -> socket.socket:
    """A listening socket on a free port; ``accept`` gives up after a moment.

    Raises:
        StartupError: the address is not ours.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        listener.bind((address, 0))
        listener.listen()
        listener.settimeout(_ACCEPT_S)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen for other ranks on {address}: {error}") from None
    return listener


def host_store(address: str, timeout_s: float) -> tuple[Store, int]:
    """The store at rank 0, and its port."""
    listener = listen(address)
    port = listener.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )
    return store, port


def join_store(host: str, port: int, timeout_s: float) -> Store:
    """The same store, from another rank.

    Raises:
        RankError: it cannot be reached.
    """
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise RankError(f"rank 0 cannot be reached at {host}:{port}: {error}") from None
