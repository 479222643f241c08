"""Attention seam: a backend writes a forward's keys and values into the cache and attends, one layer at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ssd_kernels.cpu import PagedAttention
from torch import Tensor

from ssd_cluster.errors import ConfigError
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.kv import PagedKV, TailPool


class AttentionPlan(ABC):
    """One forward: what does not depend on the layer (slots, masks, views of the cache) is worked out beforehand."""

    @property
    def compiled(self) -> PagedAttention | None:
        """The same for layers that run in one compiled call; None if some rows attend in torch."""
        return None

    @abstractmethod
    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        """Write ``kv`` to the cache, then attend.

        Args:
            layer: index of the decoder layer.
            q: [T, H, D] queries, rotated.
            kv: [T, 2, G, D] keys (rotated) and values.

        Returns:
            [T, H * D], dtype of ``q``.
        """


class AttentionBackend(ABC):
    """Attention over one model's paged KV cache and branch tails."""

    def __init__(self, config: DecoderConfig, kv: PagedKV, tails: TailPool | None) -> None:
        self.config = config
        self.kv = kv
        self.tails = tails

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        """Prepare one forward; tokens are in span order.

        Raises:
            ValueError: a block table is too short, a tree row sees no page, or there is no room for its tail.
        """


def _sdpa() -> type[AttentionBackend]:
    from ssd_cluster.model.sdpa import SdpaAttention

    return SdpaAttention


def _flashinfer() -> type[AttentionBackend]:
    from ssd_cluster.model.flashinfer_backend import FlashInferAttention

    return FlashInferAttention


BACKENDS: dict[str, Callable[[], type[AttentionBackend]]] = {"sdpa": _sdpa, "flashinfer": _flashinfer}


def attention_backend(name: str) -> type[AttentionBackend]:
    """The backend class of a name; imported only when asked for.

    Raises:
        ConfigError: there is no such backend.
    """
    if name not in BACKENDS:
        raise ConfigError(f"attention {name!r} is unknown; available are {', '.join(BACKENDS)}", param="attention")
    return BACKENDS[name]()
