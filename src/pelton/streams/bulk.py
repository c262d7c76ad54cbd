"""Bulks: many bare messages as columns, with the checksums and counts that do not depend on their sequences."""

from __future__ import annotations

import msgspec

from pelton.api import Outgoing
from pelton.storage import Columns, checksums_of_one, content_checksums


class Bulk(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages without headers. ``size`` is the bytes of subjects and payloads."""

    subjects: list[str]
    payloads: list[bytes]
    contents: list[int]
    size: int


class Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages without headers, without a Python object for each. ``size`` is as in :class:`Bulk`.

    ``firsts``, ``lasts`` and ``counts`` are the first index, the last index and the count of each distinct subject.
    """

    columns: Columns
    size: int
    subjects: list[str]
    firsts: list[int]
    lasts: list[int]
    counts: list[int]

    def messages(self) -> list[Outgoing]:
        """Return the messages as objects."""
        return [Outgoing(subject, data) for subject, data in self.columns.rows()]


def bulk_of(subjects: list[str], payloads: list[bytes]) -> Bulk:
    """Return messages as a bulk."""
    distinct = set(subjects)
    if len(distinct) == 1:
        return _bulk_of_one(distinct.pop(), subjects, payloads)
    lengths = map(len, subjects if all(map(str.isascii, subjects)) else map(str.encode, subjects))
    size = sum(map(len, payloads)) + sum(lengths)
    return Bulk(subjects, payloads, content_checksums(subjects, payloads), size)


def _bulk_of_one(subject: str, subjects: list[str], payloads: list[bytes]) -> Bulk:
    """Return messages of one subject as a bulk: what depends on the subject is computed once."""
    count, encoded = len(subjects), subject.encode()
    size = sum(map(len, payloads)) + count * len(encoded)
    return Bulk(subjects, payloads, checksums_of_one(encoded, payloads), size)
