"""Registries copied into another metrics system: same values, names it takes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ssd_cluster.metrics import DraftMetrics, TargetMetrics
from ssd_cluster.serve.metrics_mirror import RegistryMirror, sanitised


class Recorder:
    """Adds up what is recorded, as an exporter would."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, frozenset[Any]], float] = defaultdict(float)
        self.made: list[str] = []

    def Counter(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any:  # noqa: N802
        return self._instrument(name, tag_keys, lambda old, value: old + value)

    def Gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any:  # noqa: N802
        return self._instrument(name, tag_keys, lambda old, value: value)

    def _instrument(self, name: str, tag_keys: tuple[str, ...], combine: Any) -> Any:
        self.made.append(name)
        recorder = self

        class Instrument:
            def inc(self, value: float, tags: dict[str, str]) -> None:
                assert tags.keys() == set(tag_keys)
                key = (name, frozenset(tags.items()))
                recorder.values[key] = combine(recorder.values[key], value)

            set = inc

        return Instrument()

    def value(self, name: str, **tags: str) -> float:
        return self.values[name, frozenset(tags.items())]


def test_copies_follow_the_registry() -> None:
    registry = CollectorRegistry()
    counter = Counter("a:hits", "h", ["kind"], registry=registry)
    gauge = Gauge("a:level", "l", registry=registry)
    histogram = Histogram("a:time", "t", buckets=(1.0, 2.0), registry=registry)
    recorder = Recorder()
    mirror = RegistryMirror(registry, recorder)
    for round_, level in enumerate((5.0, 2.0), start=1):
        counter.labels("x").inc(3)
        gauge.set(level)
        histogram.observe(1.5)
        mirror.copy()
        mirror.copy()
        assert recorder.value("a_hits_total", kind="x") == 3 * round_
        assert recorder.value("a_level") == level
        assert recorder.value("a_time_count") == round_
        assert recorder.value("a_time_sum") == 1.5 * round_
        assert recorder.value("a_time_bucket", le="2.0") == round_
        assert recorder.value("a_time_bucket", le="1.0") == 0
    assert len(recorder.made) == len(set(recorder.made))


def test_every_series_of_both_engines_gets_a_name_of_its_own() -> None:
    for metrics in (TargetMetrics(), DraftMetrics()):
        names = [metric.name for metric in metrics.registry.collect()]
        copies = {sanitised(name) for name in names}
        assert len(copies) == len(names)
        assert all(name.isidentifier() for name in copies)
