"""Message headers (ADR-4): the names with a meaning, and the ``NATS/1.0`` block they travel in.

A block is ``NATS/1.0[ status[ text]]``, then ``Name: value`` lines, then an empty line, all ended by CR LF.
Names keep their case and are compared exactly, as the reference server does; a name may occur more than once.
Streams keep the block as bytes: it is parsed on demand.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pelton.api.errors import ConfigError

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_MSG_ID: Final = "Nats-Expected-Last-Msg-Id"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
MARKER_REASON: Final = "Nats-Marker-Reason"
INCREMENT: Final = "Nats-Incr"
COUNTER_SOURCES: Final = "Nats-Counter-Sources"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULE_SOURCE: Final = "Nats-Schedule-Source"
SCHEDULE_TTL: Final = "Nats-Schedule-TTL"
SCHEDULE_ROLLUP: Final = "Nats-Schedule-Rollup"
SCHEDULE_TIME_ZONE: Final = "Nats-Schedule-Time-Zone"
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"
SCHEDULER: Final = "Nats-Scheduler"
DELAY: Final = "Pelton-Delay"
"""Of a schedule ``@at`` that was given as a delay: how long."""
JUMPED: Final = "Pelton-Jumped"
"""Of a message that a schedule ``@at`` made: by how much the clock had jumped since the schedule was stored (ns)."""
STREAM: Final = "Nats-Stream"
SUBJECT: Final = "Nats-Subject"
SEQUENCE: Final = "Nats-Sequence"
LAST_SEQUENCE: Final = "Nats-Last-Sequence"
TIME_STAMP: Final = "Nats-Time-Stamp"
STREAM_SOURCE: Final = "Nats-Stream-Source"
MSG_SIZE: Final = "Nats-Msg-Size"
NUM_PENDING: Final = "Nats-Num-Pending"
UP_TO_SEQUENCE: Final = "Nats-UpTo-Sequence"
PENDING_MESSAGES: Final = "Nats-Pending-Messages"
PENDING_BYTES: Final = "Nats-Pending-Bytes"
LAST_CONSUMER: Final = "Nats-Last-Consumer"
LAST_STREAM: Final = "Nats-Last-Stream"
CONSUMER_STALLED: Final = "Nats-Consumer-Stalled"
PIN_ID: Final = "Nats-Pin-Id"
REQUIRED_API_LEVEL: Final = "Nats-Required-Api-Level"

LARGEST: Final = 65_535
"""The most bytes that a header block of a stored message may have."""

_VERSION = "NATS/1.0"
_BLANK = " \t"
_OPENING = re.compile(r"NATS/1\.0(?:[ \t]+(\d{3})(?:[ \t]+(.*?))?)?[ \t]*", re.ASCII)
# Decoded headers hold U+DC80 to U+DCFF for bytes that are no UTF-8; these are encoded as the original bytes.
_NO_BYTES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")
_NAME = re.compile(r"[!-9;-~]+", re.ASCII)  # visible ASCII without the colon


class Headers(Mapping[str, str]):
    """Decoded headers: ``headers[name]`` is the first value, `get_all` gives every one.

    `status` and `description` come from the first line of a server's status message, otherwise None and "".
    """

    __slots__ = ("_values", "description", "status")

    def __init__(
        self, values: Mapping[str, Sequence[str]] | None = None, status: int | None = None, description: str = ""
    ) -> None:
        self._values = {name: list(all_of) for name, all_of in (values or {}).items()}
        self.status: int | None = status
        self.description: str = description

    def __getitem__(self, name: str) -> str:
        return self._values[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header in order of appearance; empty if there is none."""
        return list(self._values.get(name, ()))


def encode(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """Return the block of `headers`; a name or value that could break out of its line is refused (`ConfigError`)."""
    lines = [_VERSION]
    for name, values in (headers if type(headers) is dict else as_lists(headers)).items():
        if type(values) is str:
            lines.append(_line(name, values))
        else:
            lines += [_line(name, value) for value in _list_of(values)]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def decode(block: bytes) -> Headers:
    """Return the headers of a block; `ConfigError` if it is malformed."""
    opening, *lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    begun = _OPENING.fullmatch(opening)
    if begun is None or lines[-2:] != ["", ""]:
        # A block without headers is "NATS/1.0 CRLF CRLF", whose split ends in two empty strings as well.
        raise _malformed_block(block)
    values: dict[str, list[str]] = {}
    for line in lines[:-2]:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or "\n" in value or "\r" in value:
            raise _malformed_block(block)
        values.setdefault(name, []).append(value.strip(" \t"))
    return Headers(values, int(begun[1]) if begun[1] else None, begun[2] or "")


def first(block: bytes, name: str) -> str | None:
    """Return the first value of one header, or None, without decoding the rest of the block."""
    value = first_value(block, name)
    return value if value is None else value.strip(_BLANK)


def first_value(block: bytes, name: str) -> str | None:
    """Return the first value of one header as a server reads it: only spaces before it are no part of it."""
    key = f"\r\n{name}:".encode()
    start = block.find(key)
    if start < 0:
        return None
    start += len(key)
    end = block.find(b"\r\n", start)
    return block[start : end if end >= 0 else len(block)].lstrip(b" ").decode("utf-8", "surrogateescape")


def stored_text(block: bytes, name: str) -> str:
    """Return the first value of one header as storable text, bytes that are no UTF-8 escaped; empty if absent."""
    return as_storable(first_value(block, name) or "")


def as_storable(value: str) -> str:
    """Return a header's value as text that can be stored: bytes that are no UTF-8 are escaped."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def with_value(block: bytes | None, name: str, value: str) -> bytes:
    """Return the block with a header appended; `name` and `value` are trusted and not checked."""
    line = f"{name}: {value}\r\n\r\n".encode()
    return (f"{_VERSION}\r\n".encode() if not block else block[:-2]) + line


def with_header(block: bytes, name: str, value: str) -> bytes:
    """Return the block with a single value of a header: in the place of its first value, or at the end."""
    line = f"\r\n{_line(name, value)}".encode("utf-8", "surrogateescape")
    start = block.find(f"\r\n{name}:".encode())
    if start < 0:
        return with_value(block, name, value)
    return block[:start] + line + block[block.find(b"\r\n", start + 2) :]


def without_headers(block: bytes | None, *names: str) -> bytes:
    """Return a block without the headers of these names; a name that ends in ``-`` is a prefix."""
    if not block:
        return f"{_VERSION}\r\n\r\n".encode()
    opening, *lines = block[:-4].split(b"\r\n")
    prefixes = tuple((name if name.endswith("-") else f"{name}:").encode() for name in names)
    return b"\r\n".join([opening, *(line for line in lines if not line.startswith(prefixes)), b"", b""])


def as_lists(headers: Mapping[str, str | Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return every header with all its values, unchecked; `ConfigError` if it is no mapping of headers."""
    if isinstance(headers, Headers):
        return {name: headers.get_all(name) for name in headers}
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers are {headers!r}: give a dict, with a text or a list of texts for each name")
    return {name: _list_of(values) for name, values in headers.items()}


def _list_of(values: str | Sequence[str]) -> Sequence[str]:
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray | memoryview)
    return values if is_list else (values,)  # type: ignore[return-value]  # _line reports values that are no text


def _line(name: str, value: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"header name {name!r} must be visible ASCII characters without spaces and colons")
    if not isinstance(value, str):
        raise ConfigError(f"header {name}: the value {value!r} is no text: pass a str, or a list of them")
    if "\r" in value or "\n" in value:
        raise ConfigError(f"header {name}: the value holds a line break: remove it, or use the payload")
    if _NO_BYTES.search(value):
        raise ConfigError(f"header {name}: the value holds a lone surrogate, which has no UTF-8 form")
    # White space around a value means nothing (it is not read back), and a server may stumble over it.
    return f"{name}: {value.strip(_BLANK)}"


def _malformed_block(block: bytes) -> ConfigError:
    return ConfigError(f"{block[:60]!r} is no NATS/1.0 header block: build it with pelton.api.headers.encode")
