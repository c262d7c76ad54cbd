"""The reports over HTTP: ``GET /varz`` and its like, ``/metrics``; nothing can be changed here."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from pelton.api import ConfigError, PeltonError
from pelton.runtime import Clock, within
from pelton.server.monitoring.observed import Observed, ReportError, ReportParameters, json_parts
from pelton.server.monitoring.reports import REPORTS, varz
from pelton.server.monitoring.stream_reports import jsz
from pelton.server.settings import Endpoint

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


_LONGEST: Final = 16 << 10
_PATIENCE_S: Final = 5.0
_PIECE: Final = 1 << 16
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class MonitoringListener:
    """Answers HTTP requests on ``endpoint``."""

    endpoint: Endpoint

    def __init__(self, server: Observed, endpoint: Endpoint, clock: Clock) -> None:
        self._server = server
        self.endpoint = endpoint
        self._clock = clock
        self._listening: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to listen. Raises ConfigError if the address cannot be used."""
        host, port = self.endpoint.host, max(self.endpoint.port, 0)
        try:
            self._listening = await asyncio.start_server(self._serve, host, port, limit=_LONGEST)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.endpoint}: {error.strerror or error}") from None
        self.endpoint = Endpoint(host=host, port=self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()
            await self._listening.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=1)
        try:
            head = await within(self._clock, _PATIENCE_S, reader.readuntil(b"\r\n\r\n"))
            status, kind, body = await self._answer(head)
            # A HEAD request gets the same without its body.
            parts = [_head(status, kind, body), *(() if head.startswith(b"HEAD ") else body)]
            await within(self._clock, _PATIENCE_S, _send(writer, parts))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            # No valid request came in time, or nobody reads the answer: nothing waits for that.
            writer.transport.abort()
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[int, str, list[bytes]]:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        if method not in ("GET", "HEAD"):
            return 405, _JSON, [b'{"error":"only GET"}']
        try:
            path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        except ValueError:
            return 400, _JSON, [b'{"error":"no path"}']
        if path == "/metrics":
            return 200, _TEXT, [(await metrics(self._server)).encode()]
        report = REPORTS.get(path.strip("/"))
        if report is None and path != "/":
            return 404, _JSON, [b'{"error":"not found"}']
        try:
            found: dict[str, Any] = (
                {"reports": [f"/{name}" for name in REPORTS]}
                if report is None
                else await report(self._server, ReportParameters(query))
            )
        except ReportError as error:
            return error.status, _TEXT, [str(error).encode()]
        except PeltonError as error:
            return 503, _JSON, [msgspec.json.encode({"error": str(error)})]
        status: int = found.pop("status_code", 200)
        return status, _JSON, list(json_parts(found))


def _head(status: int, kind: str, body: list[bytes]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}",
        f"Content-Type: {kind}",
        "Access-Control-Allow-Origin: *",
        f"Content-Length: {sum(map(len, body))}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def _send(writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
    """Send what is one answer, and let clients have their turn while the connection takes all of it at once."""
    waiting = bytearray()
    for count, part in enumerate(parts, start=1):
        waiting += part
        if len(waiting) >= _PIECE or count == len(parts):
            writer.write(waiting)
            waiting = bytearray()
            await writer.drain()
            await asyncio.sleep(0)
