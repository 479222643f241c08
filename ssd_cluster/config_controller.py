"""Configuration of the controller: whether a target chooses how it speculates, and what it may not touch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from ssd_cluster.config_base import Settings

Knob = Literal["k", "rows", "wait"]


class ControllerSettings(Settings):
    """A target in mode ``ssd`` may choose k, rows, and whether misses wait; the configured values are then ceilings.

    ``enabled``: ``controller: on`` and ``controller: off`` say the same. ``fixed``: of ``k``, ``rows`` and ``wait``
    (the miss policy), what stays as configured. With a fixed ``k`` the target always speculates, however slow that is.
    """

    enabled: bool = False
    fixed: frozenset[Knob] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, data: Any) -> Any:
        if isinstance(data, str) and data in ("on", "off"):
            return {"enabled": data == "on"}
        if isinstance(data, bool):
            return {"enabled": data}
        if isinstance(data, dict) and "fixed" in data:
            return {"enabled": True} | data
        return data

    @model_validator(mode="after")
    def _something_to_choose(self) -> ControllerSettings:
        if self.fixed and not self.enabled:
            raise ValueError("fixed says what the controller may not touch, but it is off: remove one of the two")
        if len(self.fixed) == 3:
            raise ValueError("k, rows and wait are all fixed, so nothing is left to choose: use controller: off")
        return self
