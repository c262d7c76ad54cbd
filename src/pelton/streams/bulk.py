"""Bulks: many bare messages as columns, with the checksums and counts that do not depend on their sequences."""

from __future__ import annotations

from collections.abc import Set

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


def bulk_of(subjects: list[str], distinct: Set[str], payloads: list[bytes]) -> Bulk:
    """Return messages as a bulk; ``distinct`` are the different ones among their subjects."""
    if len(distinct) == 1:
        return _bulk_of_one(subjects, payloads)
    encoded = list(map(str.encode, subjects))
    size = sum(map(len, payloads)) + sum(map(len, encoded))
    return Bulk(subjects, payloads, content_checksums(encoded, payloads), size)


def _bulk_of_one(subjects: list[str], payloads: list[bytes]) -> Bulk:
    """Return messages of one subject as a bulk: what depends on the subject is computed once."""
    count, encoded = len(subjects), subjects[0].encode()
    size = sum(map(len, payloads)) + count * len(encoded)
    return Bulk(subjects, payloads, checksums_of_one(encoded, payloads), size)
