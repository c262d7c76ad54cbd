"""What a server tells of itself: over HTTP, on ``$SYS.REQ.>``, and to Prometheus, from one table of reports."""

from pelton.server.monitoring.http import MonitoringListener
from pelton.server.monitoring.observed import Observed, ObservedAccount, TrafficTotals
from pelton.server.monitoring.system import SystemService

__all__ = ["MonitoringListener", "Observed", "ObservedAccount", "SystemService", "TrafficTotals"]
