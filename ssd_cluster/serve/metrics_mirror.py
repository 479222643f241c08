"""The series of an engine's registry once more through ray.serve.metrics, where Ray's own exporters find them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

log = logging.getLogger(__name__)

_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_]")


class Instruments(Protocol):
    """Makes counters (``inc``) and gauges (``set``), as ``ray.serve.metrics`` does."""

    def Counter(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any: ...  # noqa: N802

    def Gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any: ...  # noqa: N802


def sanitised(name: str) -> str:
    """A name Ray takes: ``vllm:num_requests_running`` becomes ``vllm_num_requests_running``."""
    return _FORBIDDEN.sub("_", name)


class RegistryMirror:
    """Copies a registry's samples: gauges as they are, counters (and a histogram's counts) by what they grew."""

    def __init__(self, registry: CollectorRegistry, instruments: Instruments) -> None:
        self._registry = registry
        self._instruments = instruments
        self._made: dict[str, Any] = {}
        self._seen: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def copy(self) -> None:
        """Bring the copies up to date; one thread at a time."""
        for metric in self._registry.collect():
            for sample in metric.samples:
                if metric.type == "gauge":
                    self._instrument(sample, metric.documentation, self._instruments.Gauge).set(
                        sample.value, tags=sample.labels
                    )
                elif not sample.name.endswith("_created"):
                    self._grow(sample, metric.documentation)

    def _grow(self, sample: Sample, description: str) -> None:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        grown = sample.value - self._seen.get(key, 0.0)
        if grown > 0:
            self._instrument(sample, description, self._instruments.Counter).inc(grown, tags=sample.labels)
            self._seen[key] = sample.value

    def _instrument(self, sample: Sample, description: str, make: Callable[..., Any]) -> Any:
        found = self._made.get(sample.name)
        if found is None:
            name = sanitised(sample.name)
            found = self._made[sample.name] = make(name, description=description, tag_keys=tuple(sample.labels))
        return found


class MirrorThread:
    """Runs a mirror every ``interval_s`` until ``close``."""

    def __init__(self, mirror: RegistryMirror, interval_s: float = 5.0) -> None:
        self._mirror = mirror
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-mirror", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._mirror.copy()
            except Exception:
                log.exception("metrics could not be copied")
                return

    def close(self) -> None:
        """Stop copying; safe to call twice."""
        self._stopped.set()
        self._thread.join(self._interval_s + 1)
