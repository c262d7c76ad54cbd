"""The same Backend on a NATS cluster with JetStream, through nats-py. Only this room imports ``nats``."""

from pelton.cluster.cluster import Cluster as Cluster
from pelton.cluster.settings import ClusterSettings as ClusterSettings
from pelton.cluster.settings import in_domain as in_domain
from pelton.cluster.settings import read_context as read_context
from pelton.cluster.settings import settings_by as settings_by
from pelton.cluster.settings import settings_of as settings_of
