"""Two ranks that exchange tensors, on gloo or NCCL. Calls block with a deadline: for helper threads only.

After an error a pair is of no use any more. Groups are made from the c10d classes themselves: the global group of a
process belongs to its model.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ssd_cluster.config import TensorBackend, TensorSettings, keep_nccl_from_ending_the_process
from ssd_cluster.errors import LinkError
from ssd_cluster.link.tensor.store import LinkStore

TARGET_RANK, DRAFT_RANK = 0, 1
_POLL_S = 0.0001
_FOREVER = timedelta(days=365)


class Pair(ABC):
    """This process's end.

    Attributes:
        device: where tensors must lie.
    """

    device: torch.device

    @abstractmethod
    def send(self, tensor: Tensor, number: int, timeout_s: float) -> None:
        """Send a contiguous tensor as transfer ``number``; returns when its memory may be used again.

        Raises:
            LinkError: the other end is gone, or did not take it within ``timeout_s``.
        """

    @abstractmethod
    def receive(self, tensor: Tensor, number: int, timeout_s: float) -> None:
        """Fill a contiguous tensor with transfer ``number``; returns when it is complete.

        Raises:
            LinkError: the other end is gone, or sent nothing of this size within ``timeout_s``.
        """

    @abstractmethod
    def close(self) -> None:
        """Release sockets and threads; the other end sees its transfers fail. Safe to call twice."""


class GlooPair(Pair):
    """CPU tensors over TCP; listens on ``settings.address`` only, on a free port."""

    device = torch.device("cpu")

    def __init__(self, settings: TensorSettings, store: LinkStore, rank: int) -> None:
        kind: Any = dist.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=settings.address)]
        options._timeout = timedelta(seconds=settings.timeout_s)
        options._threads = 1
        self._other = 1 - rank
        self._group: Any = kind(store, rank, 2, options)

    def send(self, tensor: Tensor, number: int, timeout_s: float) -> None:
        self._wait(self._open().send([tensor], self._other, number), timeout_s)

    def receive(self, tensor: Tensor, number: int, timeout_s: float) -> None:
        self._wait(self._open().recv([tensor], self._other, number), timeout_s)

    def close(self) -> None:
        self._group = None

    def _open(self) -> Any:
        if self._group is None:
            raise LinkError("the channel is closed")
        return self._group

    @staticmethod
    def _wait(work: Any, timeout_s: float) -> None:
        try:
            work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise LinkError(_first_line(error)) from None


class NcclPair(Pair):
    """CUDA tensors, from GPU to GPU; both ends need a GPU of their own."""

    def __init__(self, settings: TensorSettings, store: LinkStore, rank: int, device: torch.device) -> None:
        keep_nccl_from_ending_the_process()
        kind: Any = dist.ProcessGroupNCCL  # type: ignore[attr-defined,unused-ignore]
        options = kind.Options()
        options._timeout = _FOREVER  # deadlines are ours: NCCL's own would end the process
        self.device = device
        self._other = 1 - rank
        self._group: Any = kind(store, rank, 2, options)

    def send(self, tensor: Tensor, number: int, timeout_s: float) -> None:
        self._wait(lambda group: group.send([tensor], self._other, number), timeout_s)

    def receive(self, tensor: Tensor, number: int, timeout_s: float) -> None:
        self._wait(lambda group: group.recv([tensor], self._other, number), timeout_s)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _wait(self, begin: Any, timeout_s: float) -> None:
        if self._group is None:
            raise LinkError("the channel is closed")
        deadline = time.monotonic() + timeout_s
        try:
            with torch.cuda.device(self.device):
                work = begin(self._group)
            while not work.is_completed():
                if time.monotonic() >= deadline:
                    raise LinkError(f"a transfer did not end within {timeout_s:g} s")
                time.sleep(_POLL_S)
            if not work.is_success():
                raise LinkError(f"a transfer failed: {work.exception()}")
        except RuntimeError as error:
            raise LinkError(_first_line(error)) from None


def available(backend: TensorBackend, device: torch.device) -> str | None:
    """Why this backend cannot be used here, or None.

    Args:
        backend: what the configuration says.
        device: of the model.
    """
    if backend is TensorBackend.GLOO:
        return None if dist.is_gloo_available() else "this torch was built without gloo"
    if not dist.is_nccl_available():
        return "this torch was built without NCCL"
    return None if device.type == "cuda" else f"NCCL moves CUDA tensors, and the model runs on {device.type}"


def open_pair(settings: TensorSettings, store: LinkStore, rank: int, device: torch.device) -> Pair:
    """Meet the other end; blocks until both are there.

    Args:
        settings: backend, address, deadline.
        store: shared with the other end.
        rank: ``TARGET_RANK`` or ``DRAFT_RANK``.
        device: of the model; NCCL's tensors lie there.

    Raises:
        LinkError: the other end did not come, or what it said of itself is of no use.
    """
    try:
        if settings.backend is TensorBackend.NCCL:
            return NcclPair(settings, store, rank, device)
        return GlooPair(settings, store, rank)
    except (RuntimeError, ValueError) as error:  # what the other end says is parsed in C++, which throws both
        raise LinkError(f"no tensor channel: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Without the stack that C++ appends."""
    return (str(error).splitlines() or [type(error).__name__])[0]
