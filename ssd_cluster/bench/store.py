"""Results that grow from run to run: one record per prompt and cell in a JSON file, written as each is done."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_cluster.errors import ConfigError

Record = dict[str, Any]


class Store:
    """Records by key, in a file or in memory only.

    Args:
        path: the file, or None. If it exists its records are taken over.
        settings: what every record depends on; a file with other settings is refused.

    Attributes:
        extra: further content of the file: what was measured once, and the results of the newest run.

    Raises:
        ConfigError: the file cannot be read, or holds results of other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._settings = dict(settings)
        self._records: dict[str, Record] = {}
        self.extra: dict[str, Any] = {}
        if path is not None and path.exists():
            self._load(path)

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def get(self, key: str) -> Record | None:
        """The record of a key, if there is one."""
        return self._records.get(key)

    def all(self, keys: Sequence[str]) -> list[Record]:
        """The records of those keys that have one."""
        return [self._records[key] for key in keys if key in self._records]

    def add(self, key: str, record: Record) -> None:
        """Keep a record and write the file."""
        self._records[key] = record
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        if self._path is None:
            return
        content = {"settings": self._settings, **self.extra, "records": self._records}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._path)

    def _load(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            settings, records = dict(content.pop("settings")), dict(content.pop("records"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} holds no results to continue: {error!r}", param="json") from error
        wanted = json.loads(json.dumps(self._settings))
        other = sorted(name for name in wanted.keys() | settings.keys() if wanted.get(name) != settings.get(name))
        if other:
            raise ConfigError(
                f"{path} holds results with other settings ({', '.join(other)}); name another file", param="json"
            )
        self._records, self.extra = records, content
