"""What a server tells of itself: over HTTP, on ``$SYS.REQ.>``, and to Prometheus, from one table of reports."""

from pelton.server.monitoring.answers import MonitoringListener, SystemService
from pelton.server.monitoring.observed import ClientRoster, Observed

__all__ = ["ClientRoster", "MonitoringListener", "Observed", "SystemService"]
