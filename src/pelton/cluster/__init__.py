"""The same Backend on a NATS cluster with JetStream, through nats-py. Only this room imports ``nats``."""

from pelton.cluster.address import ClusterSettings, settings_of
from pelton.cluster.cluster import Cluster

__all__ = ["Cluster", "ClusterSettings", "settings_of"]
