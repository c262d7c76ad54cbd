"""A minimal server that a test scripts: it greets, remembers subscriptions, and sends the given answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Answer = Callable[["FakeServer", str, bytes], None]
"""What is done with a request: server, reply subject, data."""


class FakeServer:
    """The other end of one connection. ``answers`` are by subject; the JetStream API itself is answered."""

    def __init__(self, version: str, answers: dict[str, Answer]) -> None:
        self._version = version
        self._answers = answers
        self._listens: dict[str, str] = {}
        self._writer: asyncio.StreamWriter | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"nats://127.0.0.1:{self.port}"

    def say(self, subject: str, data: bytes, reply: str = "", block: bytes = b"", stored_as: str = "") -> None:
        """Deliver a message to the subscribers of a subject; a stored message has a subject of its own."""
        assert self._writer is not None
        for pattern, number in self._listens.items():
            if pattern == subject or (pattern.endswith("*") and subject.startswith(pattern[:-1])):
                sizes = f"{len(block)} {len(block) + len(data)}" if block else f"{len(data)}"
                line = f"{'HMSG' if block else 'MSG'} {stored_as or subject} {number} {reply} {sizes}\r\n"
                self._writer.write(line.encode() + block + data + b"\r\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        self._writer = writer
        info = {"server_id": "F", "version": self._version, "max_payload": 1 << 20, "headers": True, "proto": 1}
        writer.write(f"INFO {json.dumps(info)}\r\n".encode())
        while words := (await reader.readline()).decode().split():
            if words[0] == "PING":
                writer.write(b"PONG\r\n")
            elif words[0] == "SUB":
                self._listens[words[1]] = words[-1]
            elif words[0] in ("PUB", "HPUB"):
                data = (await reader.readexactly(int(words[-1]) + 2))[:-2]
                self._take(words[1], words[2], data)
        writer.close()

    def _take(self, subject: str, reply: str, data: bytes) -> None:
        if subject == "$JS.API.INFO":
            self.say(reply, b'{"type": "io.nats.jetstream.api.v1.account_info_response"}')
        elif subject in self._answers:
            self._answers[subject](self, reply, data)


@asynccontextmanager
async def fake_server(version: str = "2.15.0", answers: dict[str, Answer] | None = None) -> AsyncIterator[FakeServer]:
    """Run a fake server for as long as the context lasts."""
    fake = FakeServer(version, answers or {})
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
