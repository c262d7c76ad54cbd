"""From samples to the text that Prometheus reads, in the format it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from pelton.observe.catalogue import CATALOGUE
from pelton.observe.samples import Sample

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


def families(samples: Iterable[Sample]) -> list[Family]:
    """Return samples as Prometheus's families, in the catalogue's order, without empty ones."""
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for sample in samples:
        if sample.metric not in found:
            metric = CATALOGUE[sample.metric]
            found[sample.metric] = _KINDS[metric.kind](metric.name, metric.text, labels=metric.labels)
        found[sample.metric].add_metric(sample.labels, sample.value)
    return [found[name] for name in CATALOGUE if name in found]


def encoded(samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
    """Return the samples as text and its content type, for what a client accepts (a header of HTTP)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families(samples)))
    encoder, kind = choose_encoder(accept)
    text: bytes = encoder(registry)
    return text, kind


class _Given(Collector):
    def __init__(self, given: list[Family]) -> None:
        self._given = given

    def collect(self) -> Iterable[Family]:
        return self._given
