"""Engines of benchmarks in this process instead of workers, so that commands are tested in seconds."""

from __future__ import annotations

import pytest

from ssd_cluster.bench.contest import entries
from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import EngineSpec, LinkBackend


class HereEngine:
    """Stands for ``WorkerEngine``; the draft is in this process too."""

    running = 0

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._local: LocalEngine | None = LocalEngine(spec.model_copy(update={"link": LinkBackend.INPROCESS}))
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
    """From now on comparisons start engines here; returns the list that every started one's specification joins."""
    started: list[EngineSpec] = []

    def start(spec: EngineSpec) -> HereEngine:
        started.append(spec)
        return HereEngine(spec)

    monkeypatch.setattr(entries, "WorkerEngine", start)
    return started
