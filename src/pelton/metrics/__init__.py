"""Metrics for Prometheus: names as the exporter of NATS has them, and those of queues. Needs ``pelton[metrics]``."""

from pelton.metrics.app import Endpoint, MetricsServer, app, metrics_text
from pelton.observe.catalogue import CATALOGUE, Metric

__all__ = ["CATALOGUE", "Endpoint", "Metric", "MetricsServer", "app", "metrics_text"]
