"""Tensor channels of a target: what its configuration says of them, as the inlet that serves them."""

from __future__ import annotations

import torch

from ssd_cluster.config import LawTransport, TargetSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.link.stream import Inbox
from ssd_cluster.link.tensor.inlet import LawInlet
from ssd_cluster.link.tensor.pairs import available
from ssd_cluster.link.tensor.rows import LawShape
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.laws import LawDesk
from ssd_cluster.types import ProposalKind


def law_inlet(
    settings: TargetSettings, known: int, device: torch.device, inbox: Inbox, laws: LawDesk, metrics: TargetMetrics
) -> LawInlet | None:
    """What takes laws from tensor channels, if that is how they are to travel.

    Args:
        settings: of the target.
        known: ids that the tokenizer knows.
        device: of the model.
        inbox: of the engine.
        laws: checks them.
        metrics: counts channels that could not be made or broke.

    Raises:
        ConfigError: the backend cannot be used here.
    """
    link, speculation = settings.link, settings.speculation
    if link.laws is not LawTransport.TENSOR:
        return None
    reason = available(link.tensor.backend, device)
    if reason is not None:
        raise ConfigError(f"link.tensor.backend {link.tensor.backend.value!r}: {reason}", param="link.tensor.backend")
    width = known if speculation.kind is ProposalKind.DENSE else min(speculation.top_m, known)
    shape = LawShape(speculation.kind, speculation.k, width)
    failures = metrics.draft_failures.labels("tensor")
    return LawInlet(inbox, link.tensor, shape, device, laws.read, lambda reason: failures.inc())
