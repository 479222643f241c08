"""Puts the draft side of a target together: links, leases, sessions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ssd_cluster.config import TargetSettings
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.channels import law_inlet
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.laws import LawDesk
from ssd_cluster.target.leases import LeaseDesk, Leasing
from ssd_cluster.target.links import DraftLinks, greeting
from ssd_cluster.target.replica import Connector
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import Mode


def make_pool(
    settings: TargetSettings,
    tokenizer: Tokenizer,
    connectors: Sequence[Connector],
    leasing: Leasing | None,
    inbox: Inbox,
    laws: LawDesk,
    metrics: TargetMetrics,
    clock: Callable[[], float],
    rng: random.Random,
) -> DraftPool:
    """The draft sessions of a target; without any draft in mode ``ar`` and at k = 0."""
    speculates = settings.mode is not Mode.AR and settings.speculation.k > 0
    known = tokenizer.vocabulary
    links = DraftLinks(
        connectors if speculates else (),
        greeting(settings, tokenizer.hash, known, rng),
        settings.link,
        settings.breaker,
        inbox,
        metrics,
        rng,
        law_inlet(settings, known, laws.device, inbox, laws, metrics),
    )
    desk = LeaseDesk(leasing, links, inbox, settings) if leasing is not None and speculates else None
    return DraftPool(links, desk, settings, known, laws, metrics, clock, rng)
