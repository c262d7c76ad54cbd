"""One mirror or source, compiled: which messages of its origin it takes, and how it changes them. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from pelton.api import StreamSource, headers
from pelton.storage import Condition, subject_condition
from pelton.streams import without_headers
from pelton.subjects import Draw, Transform, matches

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
    """How to treat the messages of a source's origin."""

    def __init__(self, source: StreamSource, draw: Draw) -> None:
        self.source = source
        self.key: str = key_of(source)
        self.filters: tuple[str, ...] = filters_of(source)
        self.condition: Condition | None = subject_condition(self.filters)
        self._transforms = [
            (each.src, Transform(each.src, each.dest, draw) if each.dest else None)
            for each in source.subject_transforms
        ]
        # The part of the source header between the sequence and the subject.
        self._label = _label_of(source)
        self._middle = self.key.removeprefix(f"{self._label} ")

    def is_of(self, consumer: str) -> bool:
        """Whether messages are taken from a consumer."""
        return self.source.consumer is not None and self.source.consumer.name == consumer

    def takes(self, subject: str) -> bool:
        """Whether messages of a subject are taken."""
        return not self.filters or any(matches(text, subject) for text in self.filters)

    def renamed(self, subject: str) -> str:
        """Return the subject under which a message is stored."""
        for src, transform in self._transforms:
            if matches(src, subject):
                return (transform.apply(subject) or subject) if transform is not None else subject
        return subject

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
