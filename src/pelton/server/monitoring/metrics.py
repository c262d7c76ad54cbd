"""The numbers of a server in the text format of Prometheus."""

from __future__ import annotations

from typing import Any, Final

from pelton.server.monitoring.observed import Observed
from pelton.server.monitoring.parameters import ReportParameters
from pelton.server.monitoring.reports import varz
from pelton.server.monitoring.stream_reports import jsz

_OF_SERVER: Final = {
    "connections": ("gauge", "clients that are connected"),
    "total_connections": ("counter", "clients that connected since the start"),
    "subscriptions": ("gauge", "subscriptions of clients"),
    "slow_consumers": ("counter", "clients that were cut because they read too slowly"),
    "in_msgs": ("counter", "messages from clients"),
    "out_msgs": ("counter", "messages to clients"),
    "in_bytes": ("counter", "bytes from clients"),
    "out_bytes": ("counter", "bytes to clients"),
    "mem": ("gauge", "bytes of memory"),
}
_OF_JETSTREAM: Final = {
    "storage": ("gauge", "bytes of stored messages"),
    "streams": ("gauge", "streams"),
    "consumers": ("gauge", "consumers"),
    "messages": ("gauge", "stored messages"),
}


async def metrics(server: Observed) -> str:
    """Return all metrics; each name begins with ``pelton_server_`` or ``pelton_jetstream_``."""
    lines: list[str] = []
    clients = {"subscriptions": sum(client.num_subscriptions for client in server.clients)}
    lines += _lines("pelton_server", await varz(server, ReportParameters({})) | clients, _OF_SERVER)
    lines += _lines("pelton_jetstream", await jsz(server, ReportParameters({})), _OF_JETSTREAM)
    return "\n".join([*lines, ""])


def _lines(prefix: str, values: dict[str, Any], wanted: dict[str, tuple[str, str]]) -> list[str]:
    lines = []
    for name, (kind, text) in wanted.items():
        full = f"{prefix}_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {values[name]}"]
    return lines
