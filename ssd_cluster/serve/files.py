"""Read a configuration file and say everything that is wrong with it, one line per mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.args import ServeFile


def read_serve_file(path: Path) -> ServeFile:
    """The validated content of a file.

    Raises:
        ConfigError: it is missing, no YAML, or says something that cannot be served; one line per mistake.
    """
    try:
        return ServeFile.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in mistakes(error))) from error


def refuse(path: Path, wrong: Sequence[str]) -> None:
    """End with what is wrong with a file, if anything is.

    Raises:
        ConfigError: one line per mistake.
    """
    if wrong:
        raise ConfigError("\n".join(f"{path}: {line}" for line in wrong))


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a file as it stands there, with the key applications or without.

    Raises:
        ConfigError: it is missing, no YAML or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping with the key applications")
    return content


def mistakes(error: ValidationError) -> list[str]:
    """Each mistake as ``where: what``."""
    lines = []
    for entry in error.errors():
        where = ".".join(str(part) for part in entry["loc"])
        what = "unknown key" if entry["type"] == "extra_forbidden" else entry["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}" if where else what)
    return lines
