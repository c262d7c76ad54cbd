"""Many messages as packed columns, with the checksums and counts that do not depend on their sequences."""

from __future__ import annotations

import msgspec

from pelton.api import Outgoing
from pelton.storage import Columns


class Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages without headers, without a Python object for each. ``size`` is the bytes of subjects and payloads.

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
