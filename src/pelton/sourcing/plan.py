"""One mirror or source, compiled: which messages of its origin it takes, and how it changes them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from typing import Final

from pelton.api import StreamSource, headers
from pelton.storage import Condition, subject_condition
from pelton.streams import without_headers
from pelton.subjects import Draw, Transform, first_match

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALL: Final = ">"
_BETWEEN: Final = "\f"
_CONDITIONS: Final = "Nats-Expected-"
_OURS: Final = b"\nNats-"


def filters_of(source: StreamSource) -> tuple[str, ...]:
    """Return the filters of the messages to take; empty for all."""
    named = tuple(transform.src for transform in source.subject_transforms)
    return named or ((source.filter_subject,) if source.filter_subject else ())


def key_of(source: StreamSource) -> str:
    """Return the key that distinguishes a source from others of the same stream: origin, filters and destinations."""
    dests = (transform.dest or _ALL for transform in source.subject_transforms)
    filters = _BETWEEN.join(filters_of(source)) or _ALL
    return f"{_label_of(source)} {filters} {_BETWEEN.join(dests) or _ALL}"


def _label_of(source: StreamSource) -> str:
    """Return how nats-server calls a source: by its origin, and the consumer that it takes from."""
    return source.name if source.consumer is None else f"{source.name}:C={_hash(source.consumer.name)}"


def identity_of(name: str, created: object) -> str:
    """Return eight characters that distinguish a stream from an earlier one of the same name."""
    return _hash(f"{name} {created}")


def _hash(text: str) -> str:
    digest = sha256(text.encode()).digest()
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:8])


class Plan:
    """How to treat the messages of a source's origin.

    What is compiled is compiled when it is first needed: a source may have thousands of transforms.
    """

    def __init__(self, source: StreamSource, draw: Draw) -> None:
        self.source = source
        self._draw = draw
        self.key: str = key_of(source)
        self.filters: tuple[str, ...] = filters_of(source)
        self._transforms: dict[int, Transform] = {}
        # The part of the source header between the sequence and the subject.
        self._label = _label_of(source)
        self._middle = self.key.removeprefix(f"{self._label} ")

    @cached_property
    def condition(self) -> Condition | None:
        """The messages to take, None for all."""
        return subject_condition(self.filters)

    @cached_property
    def _first(self) -> Callable[[str], int | None]:
        return first_match(self.filters)

    def takes(self, subject: str) -> bool:
        """Whether messages of a subject are taken."""
        return not self.filters or self._first(subject) is not None

    def renamed(self, subject: str) -> str:
        """Return the subject under which a message is stored."""
        named = self.source.subject_transforms
        index = self._first(subject) if named else None
        if index is None or not named[index].dest:
            return subject
        transform = self._transforms.get(index)
        if transform is None:
            transform = self._transforms[index] = Transform(named[index].src, named[index].dest, self._draw)
        return transform.apply(subject) or subject

    def signed(self, hdr: bytes | None, seq: int, subject: str, identity: str) -> bytes:
        """Return a header block that also names the message's origin, without conditions and older such headers."""
        line = f"{headers.STREAM_SOURCE}: {self._label} {seq} {self._middle} {subject} {identity}\r\n\r\n"
        if not hdr:
            return f"NATS/1.0\r\n{line}".encode()
        if _OURS in hdr:
            hdr = without_headers(hdr, headers.STREAM_SOURCE, _CONDITIONS)
        return hdr[:-2] + line.encode()


def unconditional(hdr: bytes | None) -> bytes | None:
    """Return a block without the conditions of the original publisher."""
    return hdr if hdr is None or _OURS not in hdr else without_headers(hdr, _CONDITIONS)
