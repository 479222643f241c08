"""What ranks exchange during a forward, over gloo (CPU) or NCCL (CUDA), each wait with a deadline.

Groups are made from the c10d classes themselves, so that a process can have several and no global one is touched. After
an error a group is of no use any more. The NCCL group has not been run on hardware with several GPUs yet.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from ssd_cluster.config import keep_nccl_from_ending_the_process
from ssd_cluster.errors import RankError

_POLL_S = 0.0002
_FOREVER = timedelta(days=365)


class Group(ABC):
    """This rank's end.

    Attributes:
        rank: 0 is the one that gathers.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abstractmethod
    def all_reduce(self, values: Tensor) -> None:
        """Add up a contiguous tensor over all ranks, in place.

        Raises:
            RankError: another rank is gone, or does not answer within the deadline.
        """

    @abstractmethod
    def gather(self, values: Tensor) -> list[Tensor]:
        """On rank 0 the contiguous tensors of all ranks, which have one shape; nothing on the others.

        Raises:
            RankError: as ``all_reduce``.
        """

    @abstractmethod
    def settle(self) -> None:
        """Wait until everything that was exchanged has arrived.

        Raises:
            RankError: as ``all_reduce``.
        """

    @abstractmethod
    def close(self) -> None:
        """Release sockets and threads; other ranks see their exchange fail. Safe to call twice."""

    def _places(self, values: Tensor) -> list[list[Tensor]]:
        """Where ``gather`` puts what it gets."""
        return [[torch.empty_like(values) for _ in range(self.size)]] if self.rank == 0 else []


class GlooGroup(Group):
    """CPU tensors over TCP; listens on ``address`` only. Every call blocks until it is done."""

    def __init__(self, store: Store, rank: int, size: int, address: str, timeout_s: float) -> None:
        super().__init__(rank, size)
        kind: Any = dist.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=address)]
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = 1
        try:
            self._group: Any = kind(store, rank, size, options)
        except RuntimeError as error:
            raise RankError(f"the ranks do not find each other: {_first_line(error)}") from None

    def all_reduce(self, values: Tensor) -> None:
        self._run(lambda group: group.allreduce([values]))

    def gather(self, values: Tensor) -> list[Tensor]:
        places = self._places(values)
        self._run(lambda group: group.gather(places, [values]))
        return places[0] if places else []

    def settle(self) -> None:
        """Nothing is left: calls block."""

    def close(self) -> None:
        self._group = None

    def _run(self, begin: Callable[[Any], Any]) -> None:
        group = self._group
        if group is None:
            raise RankError("the ranks have been closed")
        try:
            begin(group).wait()
        except RuntimeError as error:
            raise RankError(f"an exchange between ranks failed: {_first_line(error)}") from None


class NcclGroup(Group):
    """CUDA tensors, from GPU to GPU. Calls are queued on the device; ``settle`` waits for them."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        super().__init__(rank, size)
        keep_nccl_from_ending_the_process()
        kind: Any = dist.ProcessGroupNCCL  # type: ignore[attr-defined,unused-ignore]
        options = kind.Options()
        options._timeout = _FOREVER  # the deadline is ours: NCCL's own would end the process
        self._device = device
        self._timeout_s = timeout_s
        self._group: Any = kind(store, rank, size, options)

    def all_reduce(self, values: Tensor) -> None:
        self._begin(lambda group: group.allreduce([values]))

    def gather(self, values: Tensor) -> list[Tensor]:
        places = self._places(values)
        self._begin(lambda group: group.gather(places, [values]))
        return places[0] if places else []

    def settle(self) -> None:
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        deadline = time.monotonic() + self._timeout_s
        while not event.query():
            if time.monotonic() >= deadline:
                raise RankError(f"the ranks did not end a forward within {self._timeout_s:g} s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _begin(self, begin: Callable[[Any], Any]) -> None:
        if self._group is None:
            raise RankError("the ranks have been closed")
        try:
            with torch.cuda.device(self._device):
                begin(self._group).wait()  # the stream waits, not this thread
        except RuntimeError as error:
            raise RankError(f"an exchange between ranks failed: {_first_line(error)}") from None


def open_group(store: Store, rank: int, size: int, *, device: torch.device, address: str, timeout_s: float) -> Group:
    """The group of ranks that compute on ``device``s of this kind; blocks until all have come.

    Args:
        store: where the ranks meet.
        address: of this machine, for gloo to listen on.
        timeout_s: longest wait for other ranks, here and in each exchange.

    Raises:
        RankError: not all came.
    """
    if device.type == "cuda":
        return NcclGroup(store, rank, size, device, timeout_s)
    return GlooGroup(store, rank, size, address, timeout_s)


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or [repr(error)])[0]
