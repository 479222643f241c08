"""``user_config``: what Serve changes on running replicas, relative to ``args``; what it leaves out is as there.

Everything else is refused with a sentence: it belongs into ``args``, and changing ``args`` starts new replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from ssd_cluster.config import (
    ControllerSettings,
    Fallback,
    MissPolicy,
    Settings,
    SpeculationSettings,
    TargetSettings,
    VerifyRule,
)
from ssd_cluster.config_changes import unchangeable
from ssd_cluster.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Settings)
Share = Annotated[float, Field(gt=0, le=1)]


class SpeculationChanges(Settings):
    """Fields of ``SpeculationSettings.IN_PLACE``; None: as in ``args``. ``k`` = 0 stops speculation."""

    k: int | None = None
    rows: int | None = None
    rule: VerifyRule | None = None
    miss_policy: MissPolicy | None = None
    fallback: Fallback | None = None
    wait_ms: float | None = None
    chain_k: int | None = None
    controller: ControllerSettings | None = None


class TargetChanges(Settings):
    """``user_config`` of a target."""

    speculation: SpeculationChanges = SpeculationChanges()


class ScalingChanges(Settings):
    """What the autoscaling policy goes by; bounds and delays are Serve's and belong into ``args``."""

    target_utilisation: Share | None = None
    late_share: Share | None = None


class DraftChanges(Settings):
    """``user_config`` of drafts."""

    target_weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    autoscaling: ScalingChanges = ScalingChanges()


def target_changes(user_config: dict[str, Any]) -> TargetChanges:
    """
    Raises:
        ConfigError: it is no ``user_config`` of a target; one sentence per mistake.
    """
    return _parsed(TargetChanges, user_config)


def draft_update(user_config: dict[str, Any], scaling: Settings | None) -> dict[str, Any]:
    """Fields of drafts' arguments with what a ``user_config`` makes of them.

    Args:
        user_config: of the drafts.
        scaling: their ``autoscaling``.

    Raises:
        ConfigError: it is no ``user_config`` of drafts, one sentence per mistake, or of drafts that do not scale.
    """
    changes = _parsed(DraftChanges, user_config)
    update: dict[str, Any] = {}
    if changes.target_weights is not None:
        update["target_weights"] = changes.target_weights
    shares = _given(changes.autoscaling)
    if shares and scaling is None:
        raise ConfigError("user_config.autoscaling: these drafts do not scale: set args.draft.autoscaling")
    if shares and scaling is not None:
        update["autoscaling"] = scaling.model_copy(update=shares)
    return update


def changed_speculation(settings: TargetSettings, changes: TargetChanges) -> SpeculationSettings:
    """The settings of ``args`` with the changes in them.

    Raises:
        ConfigError: they do not go together, or a running target cannot take them over.
    """
    before, wanted = settings.speculation, _given(changes.speculation)
    if not wanted:
        return before
    try:
        whole = {name: getattr(before, name) for name in SpeculationSettings.model_fields}
        after = SpeculationSettings.model_validate(whole | wanted)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentences(error, ("speculation",)))) from None
    if (reason := unchangeable(settings, after)) is not None:
        raise ConfigError(f"user_config: {reason}")
    return after


class ChangesInPlace:
    """A ``user_config`` that is wrong ends a start, and never a running replica: Serve would replace that with others
    that cannot start either.

    Attributes:
        refused: why the newest one was not taken over; None: it was.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self._started = False

    def take(self, apply: Callable[[], None]) -> None:
        """Apply one, or keep what is in force and log why.

        Raises:
            ConfigError: the first one is wrong.
        """
        try:
            apply()
        except ConfigError as error:
            if not self._started:
                raise
            self.refused = error.message
            log.error("user_config_refused, the old settings stay: %s", error.message)
        else:
            self.refused = None
        self._started = True


def _given(changes: BaseModel) -> dict[str, Any]:
    values = {name: getattr(changes, name) for name in type(changes).model_fields}
    return {name: value for name, value in values.items() if value is not None}


def _parsed(kind: type[T], user_config: dict[str, Any]) -> T:
    try:
        return kind.model_validate(user_config)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentences(error, (), kind))) from None


def _sentences(error: ValidationError, before: tuple[str, ...], kind: type[BaseModel] | None = None) -> list[str]:
    """Each mistake as ``user_config.where: what``."""
    lines = []
    for entry in error.errors():
        place = (*before, *map(str, entry["loc"]))
        what = entry["msg"].removeprefix("Value error, ")
        if entry["type"] == "extra_forbidden" and kind is not None:
            here = _part(kind, place[:-1])
            what = f"cannot change in place, only {', '.join(here)} can: change args, which starts new replicas"
        lines.append(f"{'.'.join(('user_config', *place))}: {what}")
    return lines


def _part(kind: type[BaseModel], place: Sequence[str]) -> list[str]:
    """Names of the settings at a place of ``user_config``."""
    for name in place:
        inner = kind.model_fields[name].annotation if name in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    return list(kind.model_fields)
