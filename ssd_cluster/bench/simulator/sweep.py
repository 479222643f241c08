"""Many simulations: the product of the swept values, each in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ssd_cluster.bench.simulator.capacity import carried_sequences
from ssd_cluster.bench.simulator.laws import PowerLaws
from ssd_cluster.bench.simulator.run import Laws, SimulationResult, simulate
from ssd_cluster.bench.simulator.settings import SimulationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation. ``carried``: sequences that one draft carries, where that was asked for (mode ``ssd``)."""

    parameters: dict[str, str]
    result: SimulationResult
    carried: int | None = None

    def as_json(self) -> dict[str, object]:
        return {"parameters": self.parameters, "result": self.result.as_json(), "carried": self.carried}


def settings_of(values: Mapping[str, Any]) -> SimulationSettings:
    """Validated settings.

    Raises:
        ConfigError: a value is missing or wrong.
    """
    try:
        return SimulationSettings.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"--{name.replace('_', '-')}: {first['msg']}", param=name) from error


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """``"batch=1,4,16"`` -> the name of a setting and its values.

    Raises:
        ConfigError: not of that form, or no such setting.
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not all(values.split(",")) or name not in SimulationSettings.model_fields or name == "mode":
        known = ", ".join(sorted(set(SimulationSettings.model_fields) - {"mode"}))
        raise ConfigError(f"--sweep takes NAME=V1,V2,... with NAME one of {known}; got {text!r}", param="sweep")
    return name, values.split(",")


def combinations(sweeps: Sequence[tuple[str, list[str]]]) -> Iterator[dict[str, str]]:
    """All combinations of swept values, the first sweep changing slowest.

    Raises:
        ConfigError: a setting is swept twice.
    """
    names = [name for name, _ in sweeps]
    if len(set(names)) < len(names):
        raise ConfigError("--sweep names each setting at most once", param="sweep")
    for values in itertools.product(*(values for _, values in sweeps)):
        yield dict(zip(names, values, strict=True))


def run_sweep(
    base: Mapping[str, Any],
    sweeps: Sequence[tuple[str, list[str]]],
    modes: Sequence[Mode],
    *,
    capacity: bool = False,
    laws: Laws = PowerLaws,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Point]:
    """Simulate every combination in every mode.

    Args:
        base: settings that are not swept.
        sweeps: as ``parse_sweep`` gives them.
        modes: in the order of the results.
        capacity: also find how many sequences one draft carries.
        laws: of outcomes.
        progress: told one line per simulation.

    Raises:
        ConfigError: a combination is not valid; nothing has been simulated then.
    """
    runs = [
        (parameters, settings_of({**base, **parameters, "mode": mode}))
        for parameters in combinations(sweeps)
        for mode in modes
    ]
    points = []
    for number, (parameters, settings) in enumerate(runs, 1):
        described = " ".join(f"{name}={value}" for name, value in parameters.items())
        progress(f"{number}/{len(runs)} {settings.mode.value} {described}".rstrip())
        result = simulate(settings, laws)
        carried = carried_sequences(settings, laws) if capacity and settings.mode is Mode.SSD else None
        points.append(Point(parameters, result, carried))
    return points
