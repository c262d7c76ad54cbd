"""Asks an ASGI app, without a server."""

from __future__ import annotations

from typing import Any, NamedTuple

from pelton.metrics import Endpoint


class Answer(NamedTuple):
    """An answer of HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


async def get(app: Endpoint, path: str, *, method: str = "GET", accept: str = "*/*") -> Answer:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(
        {"type": "http", "method": method, "path": path, "headers": [(b"accept", accept.encode())]}, receive, send
    )
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, sent[1]["body"])
