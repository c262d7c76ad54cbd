"""Metrics for Prometheus: names as the exporter of NATS has them, and those of queues. Needs ``pelton[metrics]``."""

from pelton.metrics.exposition import Endpoint, MetricsServer, app, metrics_text
from pelton.observe.samples import CATALOGUE, Metric

__all__ = ["CATALOGUE", "Endpoint", "Metric", "MetricsServer", "app", "metrics_text"]
