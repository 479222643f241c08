"""Make a draft for a target: collect its own text, cut it, train the cut, report. Call again to go on."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from ssd_cluster.errors import ConfigError

if TYPE_CHECKING:
    from ssd_cluster.distill.settings import DistillSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", help="folder, .gguf file, hub id or embedded name")
    add("out", type=Path, help="folder of the finished draft; must not exist or be empty")
    add("--work", type=Path, default=None, help="folder of shards and training state (default: OUT-work)")
    add(
        "--data",
        type=Path,
        default=None,
        help="folder of shards, if several runs share it (default: in the work folder)",
    )
    add("--recipe", type=Path, default=None, help="YAML file with the settings of collect, shape and train")
    add("--prompts", type=Path, default=None, help='.jsonl file of user turns, each line an object with "prompt"')
    add("--pack", type=Path, default=None, help="also write the int8 form without the target's embeddings here")
    add("--seed", type=int, default=None)
    add("--device", choices=["cpu", "cuda"], default=None)
    add("--threads", type=int, default=None, help="compute threads")
    add("--max-minutes", type=float, default=None, help="stop training after this time; call again to go on")


def run(arguments: argparse.Namespace) -> int:
    """Run all stages. Exit code 0 when the draft is finished, 3 when training has to be called again.

    Raises:
        ConfigError: the recipe or an option is wrong.
        SsdClusterError: a stage failed; finished stages are kept.
    """
    from ssd_cluster.distill.pipeline import Distillation

    work = arguments.work or arguments.out.with_name(arguments.out.name + "-work")
    settings = settings_of(arguments)
    finished = Distillation(settings, arguments.out, work, _progress, arguments.pack, arguments.data).run()
    return 0 if finished else 3


def settings_of(arguments: argparse.Namespace) -> DistillSettings:
    """The recipe with the options of the command line over it.

    Raises:
        ConfigError: a file cannot be read or a value is wrong.
    """
    from ssd_cluster.distill.settings import DistillSettings

    recipe = _recipe(arguments.recipe)
    recipe["target"] = arguments.target
    for name in ("seed", "device", "threads"):
        if getattr(arguments, name) is not None:
            recipe[name] = getattr(arguments, name)
    if arguments.max_minutes is not None:
        recipe["train"] = {**recipe.get("train", {}), "max_minutes": arguments.max_minutes}
    if arguments.prompts is not None:
        recipe["collect"] = {**recipe.get("collect", {}), "prompts": _prompts(arguments.prompts)}
    try:
        return DistillSettings.model_validate(recipe)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{arguments.recipe or 'options'}: {where}: {first['msg']}", param=where) from error


def _recipe(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}", param="recipe") from error
    if not isinstance(recipe, dict):
        raise ConfigError(f"{path} must hold a mapping of settings", param="recipe")
    return recipe


def _prompts(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(json.loads(line)["prompt"] for line in lines if line.strip())
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'cannot read prompts from {path}: {error!r}; one object with "prompt" per line is wanted', param="prompts"
        ) from error


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
