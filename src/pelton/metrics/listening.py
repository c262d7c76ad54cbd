"""Metrics on a port of their own, with nothing but prometheus-client.

Its server runs on a thread; the store belongs to an event loop, which collects for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from pelton.connect import Jet
from pelton.metrics.app import metrics_text

_LIMIT_S: Final = 30
"""How long a request may wait for the store's event loop."""
Start = Callable[[str, list[tuple[str, str]]], Any]


class MetricsServer:
    """Answers ``GET /metrics`` until it is closed. Raises OSError if the address cannot be had."""

    def __init__(self, jet: Jet, host: str, port: int, *, path: str = "") -> None:
        self._jet = jet
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._server: WSGIServer = make_server(host, port, self._answer, handler_class=_Quiet)
        self.port: int = self._server.server_port
        self._serving = self._loop.run_in_executor(None, self._server.serve_forever, 0.1)

    async def close(self) -> None:
        """Stop answering."""
        await self._loop.run_in_executor(None, self._server.shutdown)
        await self._serving
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD") or environ["PATH_INFO"] not in ("/metrics", "/"):
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"the metrics are at /metrics\n"]
        asked = metrics_text(self._jet, path=self._path, accept=environ.get("HTTP_ACCEPT", ""))
        text, kind = asyncio.run_coroutine_threadsafe(asked, self._loop).result(_LIMIT_S)
        start("200 OK", [("Content-Type", kind), ("Cache-Control", "no-store")])
        return [text]


class _Quiet(WSGIRequestHandler):
    """One that does not log each request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
