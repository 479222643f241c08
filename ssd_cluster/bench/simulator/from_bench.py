"""Settings of the model from the JSON file of ``ssd-cluster bench``, and predictions beside what it measured.

Every mode keeps its own measured forward and its own time between forwards; drafting time and acceptance come from mode
``sd``, the hit rate from mode ``ssd``. What is predicted is what the model makes of them: how often a round waits and
for how long, what a round emits, and so the speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_cluster.bench.handle import VERIFY_PHASES
from ssd_cluster.bench.simulator.run import simulate
from ssd_cluster.bench.simulator.sweep import settings_of
from ssd_cluster.errors import ConfigError
from ssd_cluster.speculation.speed import acceptance_from_tokens
from ssd_cluster.types import Mode

_BISECTIONS = 7
_CALIBRATION_ROUNDS = 600
_HOST_PHASES = ("link", "other")


@dataclass(frozen=True, slots=True)
class Measured:
    """All modes at one temperature and batch size; entries are results of ``bench`` by mode."""

    temperature: float
    batch: int
    modes: dict[Mode, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measured and predicted tokens/s of one mode."""

    mode: Mode
    temperature: float
    batch: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative: 0.1 is ten percent too fast."""
        return self.predicted / self.measured - 1


def load_bench(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """The configuration and the results of a bench file, grouped by temperature and batch.

    Raises:
        ConfigError: it cannot be read, or is no result of ``bench`` with the modes that are needed.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        groups: dict[tuple[float, int], dict[Mode, Mapping[str, Any]]] = {}
        for entry in content["results"]:
            if entry.get("name", entry["mode"]) != entry["mode"]:
                continue  # once more on other cores
            groups.setdefault((entry["temperature"], entry["batch"]), {})[Mode(entry["mode"])] = entry
        config = dict(content["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no JSON file of ssd-cluster bench: {error!r}", param="from") from error
    return config, [Measured(temperature, batch, modes) for (temperature, batch), modes in groups.items()]


def base_settings(config: Mapping[str, Any], measured: Measured, mode: Mode) -> dict[str, Any]:
    """Settings of one mode, the hit rate left out.

    Raises:
        ConfigError: mode ``sd`` was not measured, which drafting times and acceptance come from.
    """
    entry, plain = measured.modes[mode], measured.modes.get(Mode.AR)
    k, batch = _lookahead(config, mode), measured.batch
    points: dict[int, float] = {}
    if plain is not None:
        points[batch] = forward_ms(plain)
    if mode is not Mode.AR:
        points[batch * (k + 1)] = forward_ms(entry)
    settings: dict[str, Any] = {
        "mode": mode,
        "batch": batch,
        "k": k,
        "rows": config["rows"],
        "fanout": config["fanout"],
        "miss_policy": config["miss_policy"],
        "wait_ms": config["wait_ms"],
        "chain_k": config.get("chain_k") if mode is Mode.SSD else None,
        "verify_ms": "/".join(f"{tokens}:{ms:.6g}" for tokens, ms in points.items()),
        "overhead_ms": _host_ms(entry),
        "step_ms": 0.0,
    }
    if mode is Mode.AR:
        return settings
    drafted = measured.modes.get(Mode.SD)
    if drafted is None:
        raise ConfigError("the bench file has no mode sd, which drafting times and acceptance come from", param="from")
    drafted_k = _lookahead(config, Mode.SD)
    settings["acceptance"] = acceptance_from_tokens(float(drafted["tokens_per_round"]), drafted_k)
    settings["step_ms"] = _step_times(config, drafting_ms(drafted), drafted_k)
    return settings


def _lookahead(config: Mapping[str, Any], mode: Mode) -> int:
    """K of a mode: ``sd`` may have one of its own."""
    return int((config.get("sd_k") if mode is Mode.SD else None) or config["k"])


def forward_ms(entry: Mapping[str, Any]) -> float:
    """T_v of a result: forward, noise, processors, rule; older files have all but the forward as one."""
    return sum(float(entry["round_ms"].get(phase, 0.0)) for phase in VERIFY_PHASES)


def drafting_ms(drafted: Mapping[str, Any]) -> float:
    """How long mode ``sd`` drafts: the draft works while the target keeps its books, then the target waits."""
    return float(drafted["round_ms"]["draft_wait"]) + _host_ms(drafted)


def _host_ms(entry: Mapping[str, Any]) -> float:
    return sum(float(entry["round_ms"][phase]) for phase in _HOST_PHASES)


def _step_times(config: Mapping[str, Any], total_ms: float, k: int) -> str:
    """A draft forward by its rows: K of them are ``sd``'s drafting time; rows cost what the draft says of itself."""
    one = total_ms / k
    engine = config.get("engines", {}).get("ssd", {})
    per_row = float(engine.get("draft_step_time", {}).get("per_row_us", 0.0)) / 1e3
    return f"1:{one:.6g}/101:{one + 100 * per_row:.6g}" if per_row else f"{one:.6g}"


def predict_mode(config: Mapping[str, Any], measured: Measured, mode: Mode, overrides: Mapping[str, Any]) -> Comparison:
    """Simulate one mode; in ``ssd`` the share of right guesses is set so that the measured hit rate comes out."""
    settings = base_settings(config, measured, mode) | dict(overrides)
    entry = measured.modes[mode]
    if mode is Mode.SSD and "hits" not in overrides and entry["hit_rate"] is not None:
        guessed = calibrated(settings, float(entry["hit_rate"]))
        settings |= {"hits": guessed, "hits_after_backup": guessed}
    predicted = simulate(settings_of(settings))
    speed = float(entry["tokens_per_s"]["median"])
    return Comparison(mode, measured.temperature, measured.batch, speed, predicted.tokens_per_s)


def calibrated(settings: Mapping[str, Any], hit_rate: float) -> float:
    """Share of outcomes that must be guessed right for a simulated hit rate of ``hit_rate``; 1 if even that is less.

    A block that is late makes a right guess a miss too, so the two differ where the draft is slow.
    """
    short = dict(settings) | {"rounds": _CALIBRATION_ROUNDS}
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        result = simulate(settings_of(short | {"hits": middle, "hits_after_backup": middle}))
        if (result.hit_rate or 0.0) < hit_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def compare(
    path: Path, overrides: Mapping[str, Any], progress: Callable[[str], None] = lambda line: None
) -> list[Comparison]:
    """Predict everything that a bench file has measured.

    Args:
        path: of the file.
        overrides: settings that replace what follows from it.
        progress: told one line per prediction.

    Raises:
        ConfigError: the file or a setting is wrong.
    """
    config, groups = load_bench(path)
    found = []
    for measured in groups:
        for mode in measured.modes:
            progress(f"{mode.value} temperature {measured.temperature:g} batch {measured.batch}")
            try:
                found.append(predict_mode(config, measured, mode, overrides))
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path} lacks what a prediction needs: {error!r}", param="from") from error
    return found


def comparison_rows(found: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """Cells of the table, its header first."""
    rows: list[tuple[str, ...]] = [("mode", "T", "batch", "measured tokens/s", "predicted", "error")]
    for c in found:
        cells = (c.mode.value, f"{c.temperature:g}", str(c.batch), f"{c.measured:.1f}", f"{c.predicted:.1f}")
        rows.append((*cells, f"{100 * c.error:+.1f} %"))
    return rows
