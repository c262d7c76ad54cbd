"""Parses the client protocol: bytes come in any portions, commands go out in order.

Design: a line names a command, and for messages the sizes of what follows it. Traffic repeats its lines (the same
subject, the same size), so the meaning of a message's line is cached once the line was seen for the second time: a line
that never repeats, such as that of an ack, must not push out those that do. Incomplete input is kept as it came and
joined once, when enough has arrived, so that a large message costs no more than its bytes.

The parser never raises: input that breaks the protocol becomes a final :class:`Violation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from pelton.wire.commands import (
    Command,
    Connect,
    ErrLine,
    Hpub,
    InfoLine,
    Msg,
    OkLine,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
    Violation,
)

UNKNOWN: Final = "Unknown Protocol Operation"
MALFORMED: Final = "Parser Error"
TOO_LONG: Final = "maximum control line exceeded"
TOO_LARGE: Final = "Maximum Payload Violation"

# A connection remembers so many lines, none longer than this: what it can make a server keep is bounded.
_KNOWN_LINES: Final = 2048
_LONGEST_KNOWN: Final = 128
_MAX_DIGITS: Final = 9
_NO_SIZE: Final = -1

Side = Literal["server", "client"]


class WireLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most bytes of a line, and of a message with its headers."""

    line: int = 4096
    payload: int = 1_048_576


_Head = tuple[str, bytes, str, int, int]
"""The line of a message: subject, subscription's id, reply, the sizes of its header block (-1: none) and of all that
follows. A plain tuple: one is made for every line that is not known."""


class _BrokenError(Exception):
    """The input is no command."""


class Parser:
    """Reads what the other side sends; ``side`` is the side that reads."""

    def __init__(self, side: Side, limits: WireLimits | None = None) -> None:
        self.limits: WireLimits = WireLimits() if limits is None else limits
        self._messages, self._lines = (
            (_FROM_CLIENT, _CLIENT_LINES) if side == "server" else (_FROM_SERVER, _SERVER_LINES)
        )
        # What a server says of itself is not limited by what a client may say.
        self._longest = self.limits.line if side == "server" else 1 << 20
        self._known: dict[bytes, _Head] = {}
        self._seen: set[bytes] = set()
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = 0
        self._ended = False

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete with these bytes. After a :class:`Violation` it is always empty."""
        if self._ended:
            return []
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        found: list[Command] = []
        try:
            used = self._parse(data, found.append)
        except _BrokenError as broken:
            self._ended = True
            found.append(Violation(str(broken)))
            return found
        if used < len(data):
            rest = data[used:] if used else data
            self._parts.append(rest)
            self._held = len(rest)
        return found

    def _parse(self, data: bytes, add: Callable[[Command], None]) -> int:
        """Add the complete commands, and return how many bytes they take; note how many the next one needs."""
        known, position, end = self._known, 0, len(data)
        find = data.find
        self._needed = 0
        while position < end:
            stop = find(b"\n", position)
            if stop < 0:
                if end - position > self._longest:
                    raise _BrokenError(TOO_LONG)
                return position
            line = data[position:stop]
            head = known.get(line)
            if head is None:
                head = self._understand(line, add)
                if head is None:
                    position = stop + 1
                    continue
            subject, sid, reply, block_size, size = head
            start = stop + 1
            body = start + size
            behind = body + 2
            if behind > end:
                self._needed = behind - position
                return position
            if data[body:behind] != b"\r\n":
                raise _BrokenError(MALFORMED)
            if block_size < 0 and not sid:
                # Most of what a server reads: not worth a call.
                add(Pub(subject, reply, data[start:body]))
            else:
                add(_message(head, data, start, body))
            position = behind
        return position

    def _understand(self, line: bytes, add: Callable[[Command], None]) -> _Head | None:
        """Return the head of a message, or add any other command and return None."""
        if len(line) > self._longest:
            raise _BrokenError(TOO_LONG)
        words = line.split()
        name = words[0].upper() if words else b""
        read_message = self._messages.get(name)
        if read_message is None:
            read = self._lines.get(name)
            if read is None:
                raise _BrokenError(UNKNOWN)
            add(read(line.strip()[len(name) :].lstrip()))
            return None
        head = read_message(words)
        if head[-1] > self.limits.payload:
            raise _BrokenError(TOO_LARGE)
        if len(line) > _LONGEST_KNOWN:
            return head
        if line in self._seen:
            if len(self._known) >= _KNOWN_LINES:
                self._known.clear()
            self._known[line] = head
        else:
            if len(self._seen) >= _KNOWN_LINES:
                self._seen.clear()
            self._seen.add(line)
        return head


def _message(head: _Head, data: bytes, start: int, body: int) -> Command:
    subject, sid, reply, block_size, _ = head
    if block_size < 0:
        return Msg(subject, sid, reply, None, data[start:body])
    block, data = data[start : start + block_size], data[start + block_size : body]
    return Msg(subject, sid, reply, block, data) if sid else Hpub(subject, reply, block, data)


# --- messages


def _pub(words: list[bytes]) -> _Head:
    if len(words) == 3:
        return _text(words[1]), b"", "", _NO_SIZE, _number(words[2])
    if len(words) == 4:
        return _text(words[1]), b"", _text(words[2]), _NO_SIZE, _number(words[3])
    raise _BrokenError(MALFORMED)


def _hpub(words: list[bytes]) -> _Head:
    if len(words) not in (4, 5):
        raise _BrokenError(MALFORMED)
    reply = _text(words[2]) if len(words) == 5 else ""
    return (_text(words[1]), b"", reply, *_sizes(words))


def _msg(words: list[bytes]) -> _Head:
    if len(words) not in (4, 5):
        raise _BrokenError(MALFORMED)
    reply = _text(words[3]) if len(words) == 5 else ""
    return _text(words[1]), words[2], reply, _NO_SIZE, _number(words[-1])


def _hmsg(words: list[bytes]) -> _Head:
    if len(words) not in (5, 6):
        raise _BrokenError(MALFORMED)
    reply = _text(words[3]) if len(words) == 6 else ""
    return (_text(words[1]), words[2], reply, *_sizes(words))


def _sizes(words: list[bytes]) -> tuple[int, int]:
    block, size = _number(words[-2]), _number(words[-1])
    if block > size:
        raise _BrokenError(MALFORMED)
    # Some clients send a block of no bytes for messages without headers.
    return block or _NO_SIZE, size


_FROM_CLIENT: Final = {b"PUB": _pub, b"HPUB": _hpub}
_FROM_SERVER: Final = {b"MSG": _msg, b"HMSG": _hmsg}


# --- lines


def _connect(rest: bytes) -> Command:
    return Connect(rest.strip())


def _sub(rest: bytes) -> Command:
    words = rest.split()
    if len(words) == 2:
        return Sub(_text(words[0]), "", words[1])
    if len(words) == 3:
        return Sub(_text(words[0]), _text(words[1]), words[2])
    raise _BrokenError(MALFORMED)


def _unsub(rest: bytes) -> Command:
    words = rest.split()
    if len(words) == 1:
        return Unsub(words[0], 0)
    if len(words) == 2:
        return Unsub(words[0], _number(words[1]))
    raise _BrokenError(MALFORMED)


def _ping(rest: bytes) -> Command:
    return Ping()


def _pong(rest: bytes) -> Command:
    return Pong()


def _info(rest: bytes) -> Command:
    return InfoLine(rest.strip())


def _ok(rest: bytes) -> Command:
    return OkLine()


def _err(rest: bytes) -> Command:
    return ErrLine(rest.strip().strip(b"'").decode("utf-8", "replace"))


_CLIENT_LINES: Final = {b"CONNECT": _connect, b"SUB": _sub, b"UNSUB": _unsub, b"PING": _ping, b"PONG": _pong}
_SERVER_LINES: Final = {b"INFO": _info, b"PING": _ping, b"PONG": _pong, b"+OK": _ok, b"-ERR": _err}


def _text(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise _BrokenError(MALFORMED) from None


def _number(word: bytes) -> int:
    if not word.isdigit() or len(word) > _MAX_DIGITS:
        raise _BrokenError(MALFORMED)
    return int(word)
