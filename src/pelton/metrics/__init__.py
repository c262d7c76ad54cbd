"""Metrics for Prometheus: names as the exporter of NATS has them, and those of queues. Needs ``pelton[metrics]``."""

from pelton.metrics.app import Endpoint, app, metrics_text
from pelton.metrics.catalogue import CATALOGUE, Metric
from pelton.metrics.listening import MetricsServer

__all__ = ["CATALOGUE", "Endpoint", "Metric", "MetricsServer", "app", "metrics_text"]
