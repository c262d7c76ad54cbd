"""The client's half of the protocol: what a server sends, read, and what a client sends, encoded."""

from __future__ import annotations

import msgspec

from pelton.wire import Command, ConnectOptions, Ping, Pong, ServerHello, Violation


class InfoLine(Command, frozen=True, gc=False):
    """A server introduces itself, or tells what changed; ``facts`` is its JSON."""

    facts: bytes


class Msg(Command, frozen=True, gc=False):
    """A server delivers a message to a subscription; ``block`` is its header block, or None."""

    subject: str
    sid: bytes
    reply: str
    block: bytes | None
    data: bytes


class OkLine(Command, frozen=True, gc=False):
    """A server confirms a command to a client that wants this (``verbose``)."""


class ErrLine(Command, frozen=True, gc=False):
    """A server refuses something."""

    text: str


class ClientParser:
    """Reads what a server sends, in any portions. Behind what is no command, a Violation, nothing is read."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._ended = False

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete with these bytes."""
        self._held += data
        found: list[Command] = []
        position = 0
        while not self._ended and (stop := self._held.find(b"\n", position)) >= 0:
            try:
                command, end = self._read(bytes(self._held[position:stop]), stop + 1)
            except (ValueError, IndexError) as error:
                command, end, self._ended = Violation(str(error)), stop + 1, True
            if command is None:
                break
            found.append(command)
            position = end
        del self._held[:position]
        return found

    def _read(self, line: bytes, start: int) -> tuple[Command | None, int]:
        """Return the command of a line and where it ends; None if more of it has to come. Raises ValueError."""
        name, _, rest = line.strip().partition(b" ")
        match name:
            case b"MSG" | b"HMSG":
                return self._message(rest.split(), start, has_block=name == b"HMSG")
            case b"INFO":
                return InfoLine(rest.strip()), start
            case b"PING":
                return Ping(), start
            case b"PONG":
                return Pong(), start
            case b"+OK":
                return OkLine(), start
            case b"-ERR":
                return ErrLine(rest.strip().strip(b"'").decode("utf-8", "replace")), start
        raise ValueError(f"{line!r} is no command")

    def _message(self, words: list[bytes], start: int, *, has_block: bool) -> tuple[Command | None, int]:
        sizes = [int(word) for word in words[-2 if has_block else -1 :]]
        names = words[: -len(sizes)]
        body, end = start + (sizes[0] if has_block else 0), start + sizes[-1]
        if len(self._held) < end + 2:
            return None, start
        if self._held[end : end + 2] != b"\r\n" or len(names) > 3:
            raise ValueError("a message does not end where it should")
        block = bytes(self._held[start:body]) or None
        reply = names[2].decode() if len(names) == 3 else ""
        return Msg(names[0].decode(), names[1], reply, block, bytes(self._held[body:end])), end + 2


def parse_info(facts: bytes) -> ServerHello | None:
    """Return a server's introduction, or None if it is no valid JSON of one."""
    try:
        return msgspec.json.decode(facts, type=ServerHello)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def encode_connect(options: ConnectOptions) -> bytes:
    """Return the ``CONNECT`` line of a client."""
    always = {"verbose": options.verbose, "pedantic": options.pedantic, "echo": options.echo}
    return b"CONNECT %b\r\n" % msgspec.json.encode(msgspec.to_builtins(options) | always)


def encode_sub(subject: str, sid: bytes, queue: str = "") -> bytes:
    """Return the line that subscribes."""
    return b"SUB %b %b\r\n" % ((f"{subject} {queue}" if queue else subject).encode(), sid)


def encode_unsub(sid: bytes, limit: int = 0) -> bytes:
    """Return the line that unsubscribes, at once or after ``limit`` messages."""
    return b"UNSUB %b %d\r\n" % (sid, limit) if limit else b"UNSUB %b\r\n" % sid


def encode_pub(subject: str, reply: str, block: bytes | None, data: bytes) -> bytes:
    """Return a message that a client publishes."""
    names = (f"{subject} {reply}" if reply else subject).encode()
    if not block:
        return b"PUB %b %d\r\n%b\r\n" % (names, len(data), data)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (names, len(block), len(block) + len(data), block, data)
