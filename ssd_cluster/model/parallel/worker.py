"""Any rank but the first: loads its part of the model, then runs what rank 0 runs, in lockstep."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import torch

from ssd_cluster.errors import RankError, SsdClusterError
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.model.checkpoint import Checkpoint, open_checkpoint, resolve_checkpoint
from ssd_cluster.model.device import resolve_device
from ssd_cluster.model.parallel.channel import Channel
from ssd_cluster.model.parallel.group import Group, open_group
from ssd_cluster.model.parallel.launcher import RankOrder
from ssd_cluster.model.parallel.layers import RankLayout
from ssd_cluster.model.parallel.meeting import join_store
from ssd_cluster.model.parallel.sharding import Shard, shard_of
from ssd_cluster.model.parallel.wire import Failed, Hello, Keep, Ping, Pong, Ready, Stop, Welcome
from ssd_cluster.model.runner import ModelRunner, load_part, parse

log = logging.getLogger(__name__)

SILENCE = 4
"""A rank ends if rank 0 says nothing for this many of its deadlines; it pings several times in each."""


def serve_rank(order: RankOrder, address: str, stopped: Callable[[], str | None]) -> None:
    """Be rank ``order.rank`` until rank 0 says stop.

    Args:
        order: from rank 0.
        address: of this machine, for the exchange of tensors.
        stopped: asked a few times per second while nothing is to do; a reason ends the rank.

    Raises:
        RankError: rank 0 or another rank is gone, or does not answer.
        CheckpointError, ConfigError: the model cannot be loaded; rank 0 has been told.
    """
    try:
        connection = socket.create_connection((order.host, order.port), timeout=order.start_timeout_s)
    except OSError as error:
        raise RankError(f"rank 0 cannot be reached at {order.host}:{order.port}: {error}") from None
    channel = Channel(connection)
    group: Group | None = None
    try:
        shard, checkpoint, device = _prepare(order, channel)
        group = _meet(order, channel, device, address, stopped)
        runner = _load(order, channel, shard, checkpoint, group)
        channel.send(Ready(runner.model_hash), order.timeout_s)
        _follow(order, channel, runner, group, stopped)
    finally:
        channel.close()
        if group is not None:
            group.close()


def _prepare(order: RankOrder, channel: Channel) -> tuple[Shard, Checkpoint, torch.device]:
    """Look at model and device, and tell rank 0 how that went: a hole in the ranks would keep all others waiting."""
    try:
        device = resolve_device(order.model.device)
        if device.type == "cuda":
            device = torch.device("cuda", order.device_index)
            torch.cuda.set_device(device)
        checkpoint = open_checkpoint(resolve_checkpoint(order.model.path))
        shard = shard_of(parse(checkpoint), order.rank, order.size)
    except SsdClusterError as error:
        channel.send(Hello(order.rank, order.token, error.message), order.timeout_s)
        raise
    channel.send(Hello(order.rank, order.token), order.timeout_s)
    return shard, checkpoint, device


def _meet(
    order: RankOrder, channel: Channel, device: torch.device, address: str, stopped: Callable[[], str | None]
) -> Group:
    welcome = channel.receive(order.start_timeout_s, stopped)
    if not isinstance(welcome, Welcome):
        raise RankError(f"rank 0 began with {type(welcome).__name__}")
    store = join_store(order.host, welcome.store_port, order.timeout_s)
    return open_group(store, order.rank, order.size, device=device, address=address, timeout_s=order.timeout_s)


def _load(order: RankOrder, channel: Channel, shard: Shard, checkpoint: Checkpoint, group: Group) -> ModelRunner:
    try:
        layout = RankLayout(shard, group)
        tails = {"tail_slots": order.tail_slots, "tail_depth": order.tail_depth}
        return ModelRunner(load_part(order.model, checkpoint, shard.config, layout, **tails))
    except SsdClusterError as error:
        channel.send(Failed(error.message), order.timeout_s)
        raise


def _follow(
    order: RankOrder, channel: Channel, runner: ModelRunner, group: Group, stopped: Callable[[], str | None]
) -> None:
    silence_s = order.start_timeout_s  # rank 0 may still be loading
    while True:
        message = channel.receive(silence_s, stopped)
        silence_s = SILENCE * order.timeout_s
        match message:
            case ForwardBatch():
                try:
                    runner.forward(message)
                    group.settle()
                except ValueError as error:
                    log.debug("batch_refused error=%s", error)  # as on every rank, before anything was exchanged
            case Keep():
                runner.keep(message.block_table, message.start, message.nodes)
            case Ping():
                channel.send(Pong(), order.timeout_s)
            case Stop():
                return
            case _:
                raise RankError(f"rank 0 sent {type(message).__name__}")
