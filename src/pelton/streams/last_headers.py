"""The last message of each subject without its payload, page by page: how a bucket's keys are listed.

One statement joins the ``subjects`` table with the message rows. Payloads are not read, so checksums are not verified
either. Pages are in the order of subjects, so that each continues where the previous one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from pelton.api import LastHeaders
from pelton.storage import subject_condition
from pelton.streams.log import StreamLog
from pelton.streams.reader import ANY

_PAGE: Final = (
    "SELECT s.subject, m.seq, m.hdr FROM (SELECT subject, last FROM subjects WHERE stream=? AND msgs>0 AND subject>? "
    "AND {} ORDER BY subject LIMIT ?) s LEFT JOIN m_{} m ON m.seq=s.last AND m.subject=s.subject ORDER BY s.subject"
)


def last_headers_of(log: StreamLog, filters: Sequence[str], after: str, limit: int) -> list[LastHeaders]:
    """Return the last headers of at most ``limit`` subjects that match a filter and follow ``after``.

    Flush the stream first.
    """
    condition = subject_condition(filters) or ANY
    sql = _PAGE.format(condition.sql, log.id)
    rows = cast(
        "list[tuple[str, int | None, bytes | None]]", log.reader.rows(sql, log.id, after, *condition.bindings, limit)
    )
    heads = (
        LastHeaders(subject, seq, hdr) if seq is not None else _looked_for(log, subject) for subject, seq, hdr in rows
    )
    return [head for head in heads if head is not None]


def _looked_for(log: StreamLog, subject: str) -> LastHeaders | None:
    """Return the last headers of a subject whose recorded last sequence is not its last message."""
    row = log.reader.last_row_of(subject)
    return None if row is None else LastHeaders(subject, row.seq, row.hdr)
