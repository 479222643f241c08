"""What of a target's configuration a running engine cannot take over."""

from __future__ import annotations

from ssd_cluster.config import LawTransport, SpeculationSettings, TargetSettings
from ssd_cluster.types import Mode


def unchangeable(first: TargetSettings, speculation: SpeculationSettings) -> str | None:
    """Why an engine that was started with ``first`` cannot take these settings over, or None."""
    before = first.speculation
    fixed = [
        name
        for name in SpeculationSettings.model_fields
        if name not in SpeculationSettings.IN_PLACE and getattr(speculation, name) != getattr(before, name)
    ]
    if fixed:
        return f"speculation.{fixed[0]} cannot change in place: sessions and their memory are laid out for it"
    if first.mode is Mode.AR and speculation != before:
        return "speculation cannot change in mode ar, which has none"
    if first.mode is Mode.SD and speculation.rows != before.rows:
        return "speculation.rows cannot change in mode sd, which builds no branches"
    if before.k == 0 and speculation.k > 0:
        return "speculation.k was 0 when this target started, so that it knows no draft: start it with k above 0"
    if first.link.laws is LawTransport.TENSOR and speculation.k > before.k:
        return f"speculation.k cannot exceed {before.k} in place: tensor channels are made for laws of that many rows"
    return None
