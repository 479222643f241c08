"""What every configuration model has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of every configuration model: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _absolute(path: Path) -> Path:
    expanded = path.expanduser()
    if not expanded.is_absolute():
        raise ValueError(f"{str(path)!r} must be an absolute path: replicas run in folders of their own")
    return expanded


SecretFile = Annotated[Path, AfterValidator(_absolute)]
"""Where a secret lies, on the node that uses it. Configurations hold paths, never secrets."""
