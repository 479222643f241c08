"""Prompt files: one JSON object with a string ``prompt`` per line."""

from __future__ import annotations

import json
from pathlib import Path

from ssd_cluster.errors import ConfigError


def load_prompts(path: Path, limit: int | None = None) -> tuple[str, ...]:
    """The first ``limit`` prompts of a .jsonl file; empty lines are skipped, other keys ignored.

    Raises:
        ConfigError: the file is missing or empty, or a line is not an object with a non-empty string ``prompt``.
    """
    prompts: list[str] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if limit is not None and len(prompts) >= limit:
                    break
                if line.strip():
                    prompts.append(_prompt(line, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read prompts: {error}", param="prompts") from error
    if not prompts:
        raise ConfigError(f"{path} has no prompts", param="prompts")
    return tuple(prompts)


def _prompt(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error}", param="prompts") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(f'{where} has no string "prompt"', param="prompts")
    return prompt
