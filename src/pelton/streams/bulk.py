"""Many messages that ask for nothing, by columns, with all that is known of them before they have a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from pelton.api import Outgoing
from pelton.storage import Columns, content_checksums

Span = tuple[str, int, int, int]


class Bulk(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages without headers. ``size`` is the bytes of subjects and payloads.

    ``spans`` say of each subject where it comes first and last among them, and how often; None: each comes once.
    """

    subjects: list[str]
    payloads: list[bytes]
    contents: list[int]
    size: int
    spans: list[Span] | None


class Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages without headers, without an object of Python's a message. ``size`` is as a :class:`Bulk`'s.

    Of each of the distinct ``subjects`` it is known where it comes first and last among them, and how often.
    """

    columns: Columns
    size: int
    subjects: list[str]
    firsts: list[int]
    lasts: list[int]
    counts: list[int]

    def messages(self) -> list[Outgoing]:
        """Return them one by one."""
        return [Outgoing(subject, data) for subject, data in self.columns.rows()]


def bulk_of(subjects: list[str], payloads: list[bytes]) -> Bulk:
    """Return messages as a bulk."""
    lengths = map(len, subjects if all(map(str.isascii, subjects)) else map(str.encode, subjects))
    size = sum(map(len, payloads)) + sum(lengths)
    spans = None if len(set(subjects)) == len(subjects) else _spans(subjects)
    return Bulk(subjects, payloads, content_checksums(subjects, payloads), size, spans)


def spans_of(bulk: Bulk) -> list[Span]:
    """Return the spans of a bulk, also where each subject comes once."""
    return _spans(bulk.subjects) if bulk.spans is None else bulk.spans


def _spans(subjects: Sequence[str]) -> list[Span]:
    count = len(subjects)
    lasts = dict(zip(subjects, range(count), strict=True))
    firsts = dict(zip(reversed(subjects), reversed(range(count)), strict=True))
    return [(subject, firsts[subject], lasts[subject], number) for subject, number in Counter(subjects).items()]
