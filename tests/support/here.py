"""Engines of benchmarks in this process instead of workers, so that commands are tested in seconds."""

from __future__ import annotations

import pytest

from ssd_cluster.bench import engines
from ssd_cluster.bench.contest import entries
from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import EngineSpec, LinkBackend


class HereEngine:
    """Stands for ``WorkerEngine``; the draft is in this process too."""

    running = 0

    def __init__(self, spec: EngineSpec, name: str | None = None) -> None:
        self.spec, self.mode = spec, spec.mode
        self.name = name if name is not None else spec.mode.value
        self.cores: dict[str, object] = {}
        self._local: LocalEngine | None = LocalEngine(spec.model_copy(update={"link": LinkBackend.INPROCESS}))
        self.info = self._local.info
        HereEngine.running += 1

    def run(self, workload: Workload) -> RunRecord:
        assert self._local is not None
        return self._local.driver.run(workload)

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None
            HereEngine.running -= 1


def here(monkeypatch: pytest.MonkeyPatch) -> list[EngineSpec]:
    """From now on benchmarks start engines here; returns the list that every started one's specification joins."""
    started: list[EngineSpec] = []

    def start(spec: EngineSpec, name: str | None = None) -> HereEngine:
        started.append(spec)
        return HereEngine(spec, name)

    monkeypatch.setattr(entries, "WorkerEngine", start)
    monkeypatch.setattr(engines, "WorkerEngine", start)
    return started
