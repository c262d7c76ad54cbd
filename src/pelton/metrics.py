"""Metrics for Prometheus, as text and as an ASGI app: names as the exporter of NATS has them, and those of queues.

Needs ``pelton[metrics]``.

**Metrics on a port of their own, with nothing but prometheus-client.** Its server runs on a thread; the store belongs
to an event loop, which collects for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from pelton.connect import Jet
from pelton.observe.samples import CATALOGUE, LIMIT, Metric, Sample, samples

__all__ = ["CATALOGUE", "Endpoint", "Metric", "MetricsServer", "app", "metrics_text"]

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


def families(samples: Iterable[Sample]) -> list[Family]:
    """Return samples as Prometheus's families, in the catalogue's order, without empty ones."""
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for sample in samples:
        if sample.metric not in found:
            metric = CATALOGUE[sample.metric]
            found[sample.metric] = _KINDS[metric.kind](metric.name, metric.text, labels=metric.labels)
        found[sample.metric].add_metric(sample.labels, sample.value)
    return [found[name] for name in CATALOGUE if name in found]


def encode_samples(samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
    """Return the samples as text and its content type, for what a client accepts (a header of HTTP)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families(samples)))
    encoder, kind = choose_encoder(accept)
    text: bytes = encoder(registry)
    return text, kind


class _Given(Collector):
    def __init__(self, given: list[Family]) -> None:
        self._given = given

    def collect(self) -> Iterable[Family]:
        return self._given


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]


async def metrics_text(
    jet: Jet, *, path: str = "", limit: int = LIMIT, internals: bool = False, accept: str = ""
) -> tuple[bytes, str]:
    """Return the metrics of now, and their content type.

    ``path`` is the file of the store, whose size is exported too. Of streams, consumers, queues and elections, the
    first ``limit`` by name are exported; ``pelton_omitted`` says how many are not. ``internals`` adds the consumers by
    which queues, locks and elections work. ``accept`` is the header of the request.
    """
    return encode_samples(await samples(jet, path, limit, internals=internals), accept)


def app(jet: Jet, *, path: str = "", limit: int = LIMIT, internals: bool = False) -> Endpoint:
    """Return an ASGI app that answers with the metrics of ``jet``, at whatever path it is mounted.

    ``path``, ``limit`` and ``internals`` are as for :func:`metrics_text`. The store stays the caller's, who opens
    and closes it.
    """

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await _answer(scope, send)

    async def _answer(scope: Scope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await _respond(send, 405, b"", "text/plain; charset=utf-8", is_head=False)
            return
        accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1")
        text, kind = await metrics_text(jet, path=path, limit=limit, internals=internals, accept=accept)
        await _respond(send, 200, text, kind, is_head=scope["method"] == "HEAD")

    return metrics


async def _respond(send: Send, status: int, body: bytes, kind: str, *, is_head: bool) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else body})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


_LIMIT_S: Final = 30
"""How long a request may wait for the store's event loop."""
Start = Callable[[str, list[tuple[str, str]]], Any]


class MetricsServer:
    """Answers ``GET /metrics`` until it is closed. Raises OSError if the address cannot be had."""

    def __init__(self, jet: Jet, host: str, port: int, *, path: str = "", internals: bool = False) -> None:
        self._jet = jet
        self._path = path
        self._internals = internals
        self._loop = asyncio.get_running_loop()
        self._server: WSGIServer = make_server(
            host, port, self._answer, server_class=_ThreadingServer, handler_class=_Quiet
        )
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
        accept = environ.get("HTTP_ACCEPT", "")
        asked = metrics_text(self._jet, path=self._path, internals=self._internals, accept=accept)
        text, kind = asyncio.run_coroutine_threadsafe(asked, self._loop).result(_LIMIT_S)
        start("200 OK", [("Content-Type", kind), ("Cache-Control", "no-store")])
        return [text]


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """Answers each connection on a thread, so that one which says nothing holds up no other, nor the end."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away, or was too slow."""


class _Quiet(WSGIRequestHandler):
    """A handler that does not log each request, and gives up a client that is silent for ten seconds."""

    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
