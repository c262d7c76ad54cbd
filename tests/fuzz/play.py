"""Plays a case on a server, and returns what a client sees, without what differs each time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from pelton.api import ConfigError
from pelton.wire import Command, Ping, Pong, Violation
from pelton.wire.leaf_protocol import LeafParser
from tests.fuzz import access, jetstream, protocol, wild
from tests.fuzz.sides import Side
from tests.kit.served import config_of
from tests.kit.wire_client import ClientParser, InfoLine, Msg
from tests.server.raw import shown
from tests.server.settings.oracle import verdict

# As long as a server that has nothing to say is waited for; a case that differs for that alone is played again.
_SILENCE_S: Final = 1.0
_PAUSE_S: Final = 0.01
_LAST: Final = b"SUB ~ ~\r\nPUB ~ 3\r\nEND\r\n"
_ENDED: Final = b"MSG ~ ~ 3\r\nEND\r\n"
# Which subscription is told that there are no responders is nobody's promise either.
_NOBODY: Final = re.compile(r"^\S+(?= \S+ - \[NATS/1\.0 503\|Nats-Subject: )")
_UNREAD: Final = ("-ERR Parser Error", "-ERR Unknown Protocol Operation", "-ERR Maximum Payload Violation")
_PLAIN: Final = (
    '{"user":"%s","pass":"p","verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}'
)


class Case(NamedTuple):
    """What is played: ``kind`` names a generator, ``number`` what it makes; ``is_slow`` sends it bit by bit."""

    kind: str
    number: int
    is_slow: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def random(self) -> Random:
        """The source of all that is random in it."""
        return Random(str(self))


# --- connections


async def _rest(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    is_over: Callable[[bytes], bool],
    is_sent: asyncio.Event,
) -> tuple[bytes, bool]:
    """What a server sends until it is over, or until it closes the connection, which a silent one is asked for."""
    data = b""
    try:
        while not is_over(data):
            try:
                async with asyncio.timeout(_SILENCE_S):
                    portion = await reader.read(65_536)
            except TimeoutError:
                if not is_sent.is_set():
                    continue
                writer.write_eof()
                portion = await reader.read(65_536)
            if not portion:
                break
            data += portion
    except OSError:
        # What came before the end of the connection is still there.
        data += bytes(reader._buffer)  # type: ignore[attr-defined]  # nothing else tells
    return data, not is_over(data)


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parts: list[bytes],
    is_slow: bool,
    is_over: Callable[[bytes], bool],
) -> tuple[bytes, bool]:
    """Send all at once, or one after the other, and read meanwhile; see :func:`_rest`.

    A server that ends a connection from which it has not read all makes its client lose what it was told last.
    """
    is_sent = asyncio.Event()
    reading = asyncio.ensure_future(_rest(reader, writer, is_over, is_sent))
    with suppress(OSError):
        for part in parts if is_slow else [b"".join(parts)]:
            if reading.done():
                break
            writer.write(part)
            await writer.drain()
            if is_slow:
                await asyncio.sleep(_PAUSE_S)
    is_sent.set()
    return await reading


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield reader, writer
    finally:
        # Until the server knows that it is gone, it has subscriptions.
        with suppress(OSError, TimeoutError):
            writer.write_eof()
            async with asyncio.timeout(_SILENCE_S):
                while await reader.read(1 << 20):
                    pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _told(data: bytes, is_ended: bool) -> list[str]:
    """Describe commands; those between pongs are sorted, as no subscription has to get a message first."""
    found: list[str] = []
    some: list[str] = []
    for command in ClientParser().feed(data):
        if isinstance(command, InfoLine | Ping):
            continue
        if isinstance(command, Msg) and command.subject.startswith(("~", "$JS.EVENT.")):
            # The last one, or an event of a case before.
            continue
        if isinstance(command, Violation):
            some.append(f"no command: {command.text}")
        elif isinstance(command, Pong):
            found += [*sorted(some), "Pong"]
            some = []
        else:
            some.append(_NOBODY.sub("one", shown(command)))
    if is_ended:
        # nats-server does not always say that it could not read a command.
        some = [each for each in some if each not in _UNREAD]
    return [*found, *sorted(some), *(["END"] if is_ended else [])]


async def _commands(side: Side, user: str, case: Case) -> list[str]:
    random = case.random
    sent = [protocol.connect(random, user, random.choice((0.0, 0.0, 0.0, 0.4))), *protocol.commands(random), _LAST]
    async with _connected(side.port) as (reader, writer):
        await reader.readline()
        return _told(*await _exchange(reader, writer, sent, case.is_slow, lambda data: _ENDED in data))


_UPGRADE: Final = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n\r\n"
)


async def _frames(side: Side, user: str, case: Case) -> list[str]:
    random = case.random
    hello = protocol.frame(2, protocol.connect(random, user))
    sent = [hello, *protocol.frames(random), protocol.frame(2, _LAST)]
    async with _connected(side.websocket_port) as (reader, writer):
        writer.write(_UPGRADE)
        head = await reader.readuntil(b"\r\n\r\n")
        data, is_ended = await _exchange(
            reader, writer, sent, case.is_slow, lambda data: _ENDED in protocol.content_of(data)[0]
        )
    content, others = protocol.content_of(data)
    return [head.split(b"\r\n")[0].decode(), *others, *_told(content, is_ended)]


# --- JetStream


def _published(subject: str, reply: str, data: bytes, block: bytes = b"") -> bytes:
    head = f"{subject} {reply} ".encode("utf-8", "replace")
    if block:
        return b"HPUB %b%d %d\r\n%b%b\r\n" % (head, len(block), len(block) + len(data), block, data)
    return b"PUB %b%d\r\n%b\r\n" % (head, len(data), data)


# What counts requests, tells the time, or says of what there is not that it is empty.
_ASIDE: Final = frozenset({"api", "level", "pause_remaining", "server_id", "bytes", "memory", "storage"})


def _plain(message: Msg) -> str:
    """Describe an answer; of an error, that it is one."""
    try:
        value = json.loads(message.data)
    except ValueError:
        return shown(message)
    if isinstance(value, dict):
        if "error" in value:
            value = {key: value[key] for key in ("error", "type") if key in value}
        _put_aside(value)
        for one in value.get("consumers", []) if "total" in value else ():
            if isinstance(one, dict):
                _put_aside(one)
        return shown(Msg(message.subject, message.sid, message.reply, message.block, json.dumps(value).encode()))
    return shown(message)


def _put_aside(value: dict[str, Any]) -> None:
    if value.get("num_ack_pending"):
        # A server's floor stays behind the numbers of redeliveries until acks have come.
        del value["ack_floor"]
    for key in [key for key, item in value.items() if key in _ASIDE or item in (None, [], 0, False)]:
        del value[key]


class _Client:
    """A client whose requests are answered each on a subject of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser = ClientParser()
        self.seen: dict[str, list[str]] = {}
        self.raw: dict[str, bytes] = {}
        self.errors: list[str] = []

    async def until(self, *subjects: str, seconds: float = _SILENCE_S * 5) -> bool:
        """Take what comes until all these subjects had something; False if the connection has ended, or is silent."""
        try:
            async with asyncio.timeout(seconds):
                while not all(subject in self.raw for subject in subjects):
                    data = await self._reader.read(1 << 18)
                    if not data:
                        self.errors.append("END")
                        return False
                    self._take(data)
        except (TimeoutError, ConnectionError):
            return False
        return True

    def _take(self, data: bytes) -> None:
        for command in self._parser.feed(data):
            if isinstance(command, Msg):
                self.raw[command.subject] = command.data
                self.seen.setdefault(command.subject, []).append(_plain(command))
            elif not isinstance(command, InfoLine | Ping | Pong):
                self.errors.append(shown(command) if not isinstance(command, Violation) else command.text)

    async def ask(self, name: str, sent: bytes, patience: float = _SILENCE_S) -> None:
        """Send a message that may be answered at _INBOX.NAME, and wait for it, until one sent after it was answered.

        A server may answer what comes after it sooner, but not so much sooner.
        """
        after = f"_INBOX.after.{name}"
        self._writer.write(sent + _published("$JS.API.INFO", after, b""))
        if await self.until(after):
            await self.until(f"_INBOX.{name}", seconds=patience)

    def write(self, data: bytes) -> None:
        """Send it."""
        self._writer.write(data)


@asynccontextmanager
async def _asking(side: Side, user: str) -> AsyncIterator[_Client]:
    async with _connected(side.port) as (reader, writer):
        await reader.readline()
        writer.write(b"CONNECT " + (_PLAIN % user).encode() + b"\r\nSUB _INBOX.> 1\r\n")
        client = _Client(reader, writer)
        try:
            yield client
        finally:
            names = ("S", "T", "R", "X")
            for name in names:
                writer.write(_published(f"$JS.API.STREAM.DELETE.{name}", f"_INBOX.gone.{name}", b""))
            await client.until(*(f"_INBOX.gone.{name}" for name in names))
            await _removed(side, user)


async def _removed(side: Side, user: str) -> None:
    """Wait until files are gone: nats-server refuses a stream for whose files it has not found the time."""
    streams = side.folder / user.upper() / "streams"
    # The folder may go, too.
    with suppress(FileNotFoundError):
        for _ in range(500):
            if not any(streams.iterdir()):
                return
            await asyncio.sleep(0.01)


async def _requests(side: Side, user: str, case: Case) -> list[str]:
    asked = jetstream.requests(case.random)
    async with _asking(side, user) as client:
        for number, (subject, data, block) in enumerate(asked):
            sent = _published(subject, f"_INBOX.{number}", data, block)
            await client.ask(str(number), sent, _SILENCE_S if case.is_slow else _SILENCE_S / 20)
        answers = [client.seen.get(f"_INBOX.{number}", []) for number in range(len(asked))]
        # Of an answer in many messages, the last ones may come later.
        await client.until("_INBOX.more", seconds=_SILENCE_S / 20)
        return [f"{number}: {' & '.join(each)}" for number, each in enumerate(answers)] + client.errors


async def _wild(side: Side, user: str, case: Case) -> list[str]:
    sent = [protocol.connect(case.random, user), *wild.commands(case.random, user), _LAST]
    async with _connected(side.port) as (reader, writer):
        await reader.readline()
        await _exchange(reader, writer, sent, case.is_slow, lambda data: _ENDED in data)
    async with _asking(side, user) as client:
        await client.ask("0", _published("$JS.API.STREAM.INFO.none", "_INBOX.0", b""))
        return client.seen.get("_INBOX.0", [])


async def _archives(side: Side, user: str, case: Case) -> list[str]:
    found = []
    for number, (request, chunks) in enumerate(jetstream.archives(case.random)):
        async with _asking(side, user) as client:
            found.append(await _restored(client, number, request, chunks))
    return found


async def _restored(client: _Client, number: int, request: bytes, chunks: list[bytes]) -> str:
    first = f"_INBOX.{number}"
    client.write(_published("$JS.API.STREAM.RESTORE.R", first, request))
    if not await client.until(first):
        return "no answer"
    into = json.loads(client.raw[first]).get("deliver_subject")
    if not into:
        return client.seen[first][0]
    for at, chunk in enumerate(chunks):
        client.write(_published(into, f"_INBOX.{number}.{at}", chunk))
    last = f"_INBOX.{number}.last"
    client.write(_published(into, last, b""))
    if not await client.until(last):
        return "no last answer"
    await client.ask("info", _published("$JS.API.STREAM.INFO.R", "_INBOX.info", b""))
    await client.until("_INBOX.info")
    return f"{client.seen[last][-1]} / {client.seen['_INBOX.info'][0]}"


# --- access


async def _logins(side: Side, user: str, case: Case) -> list[str]:
    return [await _tried(side.operator_port, login) for login in access.logins(case.random)]


async def _tried(port: int, login: access.Login) -> str:
    async with _connected(port) as (reader, writer):
        hello = json.loads((await reader.readline())[5:])
        fields = {"verbose": False, "headers": True, "no_responders": True} | login.fields(hello.get("nonce", ""))
        trials = "".join(f"{trial}\r\n" for trial in access.TRIALS)
        sent = f"CONNECT {json.dumps(fields)}\r\n{trials}PING\r\n".encode()
        told = _told(*await _exchange(reader, writer, [sent], False, lambda data: b"PONG\r\n" in data))
    # What is told again and again is told once.
    return " & ".join(dict.fromkeys(told))


async def _configurations(side: Side, user: str, case: Case) -> list[str]:
    found = []
    with TemporaryDirectory() as home:
        for text in access.configurations(case.random):
            if side.name == "pelton":
                found.append(_read(text))
            else:
                read = await asyncio.to_thread(verdict, Path(home), text)
                found.append("accepted" if read.digest else f"refused: {read.text.strip().splitlines()[-1]}")
    return found


def _read(text: str) -> str:
    try:
        loaded = config_of(text, file="server.conf", read=lambda path: Path(path).read_text())
    except (ConfigError, OSError) as error:
        return f"refused: {error}"
    return "accepted, not all of it" if loaded.warnings else "accepted"


async def _of_hubs(side: Side, user: str, case: Case) -> list[str]:
    """What a hub may send to a leaf node reads the same in any pieces, and breaks nothing; there is no other reader."""
    found = []
    for data in protocol.sent_by_hubs(case.random):
        whole, pieces, rest, random = LeafParser(), LeafParser(), data, case.random
        told = list[Command]()
        while rest:
            size = random.randrange(1, 40)
            told += pieces.feed(rest[:size])
            rest = rest[size:]
        alike = side.name != "pelton" or whole.feed(data) == told
        found.append("alike" if alike else f"in pieces, {data!r} is {told}")
    return found


Play = Callable[[Side, str, Case], Awaitable[list[str]]]
# How a case of a kind is played, and how many inputs it has.
PLAYS: Final[dict[str, tuple[Play, int]]] = {
    "commands": (_commands, 100),
    "frames": (_frames, 40),
    "requests": (_requests, 30),
    "wild": (_wild, 40),
    "logins": (_logins, 10),
    "archives": (_archives, 3),
    "configurations": (_configurations, 4),
    "hubs": (_of_hubs, 50),
}
