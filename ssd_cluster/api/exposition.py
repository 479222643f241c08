"""Prometheus text of an engine's registry, every sample labelled with the replica that answers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.samples import Sample

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Labelled(CollectorRegistry):
    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        super().__init__()
        self._source = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for metric in self._source.collect():
            labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            labelled.samples = [
                Sample(s.name, {**s.labels, **self._labels}, s.value, s.timestamp, s.exemplar) for s in metric.samples
            ]
            yield labelled


def prometheus_text(registry: CollectorRegistry, **labels: str) -> bytes:
    """All series of ``registry`` in Prometheus' text format with ``labels`` added to each."""
    return generate_latest(_Labelled(registry, labels))
