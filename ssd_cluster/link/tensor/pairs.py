"""Two ranks that exchange tensors, on gloo or NCCL. Calls block with a deadline: for helper threads only.

After an error a pair is of no use any more. Groups are made from the c10d classes themselves: the global group of a
process belongs to its model.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ssd_cluster.config import TensorBackend, TensorSettings
from ssd_cluster.config_link import keep_nccl_from_ending_the_process
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
    def receive(self, buffer: Tensor, size: int, number: int, timeout_s: float) -> None:
        """Fill the first ``size`` entries of a contiguous tensor with transfer ``number``; returns when it has ended.

        The whole buffer must be free: a transfer may be shorter or longer than was announced, but never longer than
        the buffer, for then gloo ends the process.

        Raises:
            LinkError: the other end is gone, or sent nothing within ``timeout_s``.
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

    def receive(self, buffer: Tensor, size: int, number: int, timeout_s: float) -> None:
        self._wait(self._open().recv([buffer], self._other, number), timeout_s)

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

    def receive(self, buffer: Tensor, size: int, number: int, timeout_s: float) -> None:
        self._wait(lambda group: group.recv([buffer[:size]], self._other, number), timeout_s)

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


def new_store(backend: TensorBackend, tell: Callable[[str, bytes], None], timeout_s: float) -> LinkStore:
    """The store of one rendezvous; arguments as for :class:`LinkStore`."""
    return LinkStore(tell, timeout_s, _alike if backend is TensorBackend.GLOO else lambda ours, theirs: bool(theirs))


def _alike(ours: bytes, theirs: bytes) -> bool:
    """gloo reads an entry without looking where it ends; one that is not built as ours could end the process."""
    layout = _gloo_layout(ours)
    return layout is None or layout == _gloo_layout(theirs)


def _gloo_layout(entry: bytes) -> tuple[int, bytes, int] | None:
    """Length of the address, its family, and number of pairs in a gloo entry; None: it is built in another way.

    An entry is the length of the host's name, the name, the length of the address, the address, and the pairs' numbers;
    all numbers have 64 bits.
    """
    after_name = 8 + int.from_bytes(entry[:8], sys.byteorder)
    address = after_name + 8
    length = int.from_bytes(entry[after_name:address], sys.byteorder)
    pairs, rest = divmod(len(entry) - address - length, 8)
    if len(entry) < address or pairs < 1 or rest:
        return None
    return length, entry[address : address + 2], pairs


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
    except Exception as error:  # what the other end says is parsed in C++, which throws many things
        raise LinkError(f"no tensor channel: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Without the stack that C++ appends."""
    return (str(error).splitlines() or [type(error).__name__])[0]
