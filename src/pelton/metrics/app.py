"""The metrics of a store or cluster, as text, and as an ASGI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pelton.connect import Jet
from pelton.metrics.exposition import encoded
from pelton.observe.samples import LIMIT, samples

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]


async def metrics_text(jet: Jet, *, path: str = "", limit: int = LIMIT, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of now, and their content type.

    ``path`` is the file of the store, whose size is told, too. Of streams, consumers, queues and elections, the first
    ``limit`` by name are told of; ``pelton_omitted`` says how many are not. ``accept`` is the header of the request.
    """
    return encoded(await samples(jet, path, limit), accept)


def app(jet: Jet, *, path: str = "", limit: int = LIMIT) -> Endpoint:
    """Return an ASGI app that answers with the metrics of ``jet``, at whatever path it is mounted.

    ``path`` and ``limit`` are as for :func:`metrics_text`. The store stays the caller's, who opens and closes it.
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
        text, kind = await metrics_text(jet, path=path, limit=limit, accept=accept)
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
