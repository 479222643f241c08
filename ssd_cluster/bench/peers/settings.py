"""What a peer in a process of its own needs; plain data that crosses to the worker."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from ssd_cluster.config import DType, Settings


class Method(StrEnum):
    """How transformers decodes: plainly, with a draft model, or with tokens looked up in the prompt."""

    GENERATE = "generate"
    ASSISTED = "assisted"
    LOOKUP = "lookup"


class PeerSettings(Settings):
    """A model of transformers on some cores.

    ``draft``: for ``assisted``. ``tokens``: proposed per round by ``assisted`` and ``lookup``; None: for ``assisted``
    what transformers does by itself.
    """

    method: Method
    target: str
    draft: str | None = None
    dtype: DType = DType.AUTO
    cores: tuple[int, ...] | None = None
    tokens: int | None = Field(default=None, ge=1)
