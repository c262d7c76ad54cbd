"""The same Backend on a NATS cluster with JetStream, through nats-py. Only this room imports ``nats``."""

from pelton.cluster.cluster import Cluster
from pelton.cluster.settings import ClusterSettings, read_context, settings_of

__all__ = ["Cluster", "ClusterSettings", "read_context", "settings_of"]
