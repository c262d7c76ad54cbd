"""The last message of each subject without its payload, page by page: how a bucket's keys are listed.

One statement joins the ``subjects`` table with the message rows. Payloads are not read, so checksums are not verified
either. Pages are in the order of subjects, so that each continues where the previous one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from pelton.api import LastHeaders
from pelton.storage import Condition, subject_condition
from pelton.streams.log import StreamLog

_PAGE: Final = (
    "SELECT s.subject, m.seq, m.hdr FROM (SELECT subject, last FROM {} ORDER BY subject LIMIT ?) s "
    "LEFT JOIN {table} m ON m.seq=s.last AND m.subject=s.subject ORDER BY s.subject"
)


def last_headers_of(log: StreamLog, filters: Sequence[str], after: str, limit: int) -> list[LastHeaders]:
    """Return the last headers of at most ``limit`` subjects that match a filter and follow ``after``.

    Flush the stream first.
    """
    wanted = subject_condition(filters)
    further = Condition("subject>?", (after,))
    if wanted is not None:
        further = Condition(f"{further.sql} AND {wanted.sql}", (after, *wanted.bindings))
    found = log.reader.subjects(_PAGE.replace("{table}", log.table.name), further, limit)
    rows = cast("list[tuple[str, int | None, bytes | None]]", found)
    heads = (
        LastHeaders(subject, seq, hdr) if seq is not None else _looked_for(log, subject) for subject, seq, hdr in rows
    )
    return [head for head in heads if head is not None]


def _looked_for(log: StreamLog, subject: str) -> LastHeaders | None:
    """Return the last headers of a subject whose recorded last sequence is not its last message."""
    row = log.reader.last_row_of(subject)
    return None if row is None else LastHeaders(subject, row.seq, row.hdr)
