"""A client that speaks the protocol itself, so that what a server sends can be compared byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pelton.wire import Ping, Pong, ServerHello
from pelton.wire.protocol import Command
from tests.kit.wire_client import ClientParser, ErrLine, InfoLine, Msg, encode_pub, encode_sub, parse_info

PLAIN = '{"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}'
_TIMEOUT_S = 10.0
_ACK = re.compile(r"(\$JS\.ACK(?:\.[^.]+){5})\.\d+\.(\d+)$")
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_ID = re.compile(r"\b[A-Za-z0-9]{22}\b")
_IF_EMPTY = frozenset({"total", "offset", "limit", "metadata"})
_OWN = frozenset(
    {
        "ts",
        "created",
        "cluster",
        "id",
        "timestamp",
        "server",
        "client",
        "last_active",
        "_nats.ver",
        "_nats.level",
        "_nats.req.level",
    }
)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = ClientParser()
        self._commands: list[Command] = []
        self._is_greeted = False

    def send(self, *parts: bytes | str) -> None:
        """Send lines; each gets its end."""
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            self._writer.write(data if data.endswith(b"\r\n") else data + b"\r\n")

    def pub(
        self, subject: str, data: bytes | str | dict[str, Any] = b"", reply: str = "", block: bytes | None = None
    ) -> None:
        """Publish a message; a dict goes as JSON."""
        text = json.dumps(data) if isinstance(data, dict) else data
        self.send(encode_pub(subject, reply, block, text.encode() if isinstance(text, str) else text))

    def sub(self, subject: str, sid: str, queue: str = "") -> None:
        """Subscribe."""
        self.send(encode_sub(subject, sid.encode(), queue))

    async def next(self) -> Command | None:
        """Return the next command; None at the end."""
        async with asyncio.timeout(_TIMEOUT_S):
            while not self._commands:
                data = await self._reader.read(65536)
                if not data:
                    return None
                self._commands += self._parser.feed(data)
        found = self._commands.pop(0)
        if isinstance(found, Ping):
            self.send("PONG")
            return await self.next()
        if isinstance(found, InfoLine) and self._is_greeted:
            # A server with accounts tells a client about its own, at some time.
            return await self.next()
        self._is_greeted = True
        return found

    async def info(self) -> ServerHello:
        """Return the next INFO."""
        self._is_greeted = False
        found = await self.next()
        hello = parse_info(found.facts) if isinstance(found, InfoLine) else None
        assert hello is not None
        return hello

    async def settle(self) -> list[str]:
        """Return what has come up to the answer to a ping, described."""
        self.send("PING")
        found: list[str] = []
        while (command := await self.next()) is not None and not isinstance(command, Pong):
            found.append(shown(command))
        return found if command is not None else [*found, "END"]

    async def take(self, count: int) -> list[str]:
        """Return the next commands, described."""
        return [shown(command) if (command := await self.next()) is not None else "END" for _ in range(count)]

    async def until(self, what: str) -> list[str]:
        """Return what comes up to a command that holds a text, each once: how many signs of life come differs."""
        found: list[str] = []
        while not found or what not in found[-1]:
            found += await self.take(1)
        return list(dict.fromkeys(found))

    async def request(self, subject: str, data: bytes | str | dict[str, Any] = b"", block: bytes | None = None) -> str:
        """Return the one answer to a request, described."""
        self.sub("_INBOX.answer", "answer")
        self.pub(subject, data, "_INBOX.answer", block)
        (found,) = await self.take(1)
        self.send("UNSUB answer")
        return found

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


def shown(command: Command) -> str:
    """Describe a command, without what differs each time."""
    if isinstance(command, Msg):
        block = _TIMES.sub("TIME", (command.block or b"").decode(errors="backslashreplace")).replace("\r\n", "|")
        names = f"{command.sid.decode(errors='backslashreplace')} {command.subject} {_named(command.reply)}"
        return f"{names} [{_ID.sub('ID', block)}] {_data(command.data)}"
    if isinstance(command, ErrLine):
        return f"-ERR {command.text}"
    return type(command).__name__


def _named(reply: str) -> str:
    return _ID.sub("ID", _ACK.sub(r"\1.T.\2", reply)) or "-"


def _data(data: bytes) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return repr(data)
    return json.dumps(_known(value), sort_keys=True) if isinstance(value, dict) else repr(data)


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        known = {key: _known(item) for key, item in value.items() if key not in _OWN}
        # nats-server tells the paging of what has no pages, and puts its version into metadata.
        return {key: item for key, item in known.items() if item or key not in _IF_EMPTY}
    if isinstance(value, list):
        return [_known(item) for item in value]
    return _TIMES.sub("TIME", value) if isinstance(value, str) else value


@asynccontextmanager
async def raw_client(port: int, connect: str = PLAIN) -> AsyncIterator[RawClient]:
    """Connect, and introduce itself unless ``connect`` is empty."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = RawClient(reader, writer)
    assert isinstance(await client.next(), InfoLine)
    if connect:
        client.send(f"CONNECT {connect}")
    try:
        yield client
    finally:
        await client.close()
