"""What a server tells of itself: over HTTP, on ``$SYS.REQ.>``, and to Prometheus, from one table of reports."""

from pelton.server.monitoring.answers import MonitoringListener as MonitoringListener
from pelton.server.monitoring.answers import SystemService as SystemService
from pelton.server.monitoring.observed import ClientRoster as ClientRoster
from pelton.server.monitoring.observed import Observed as Observed
