"""The last message of each subject, now or as it was at an earlier sequence.

The rows of subjects answer for those that have not been written since. For the others, the stream is scanned
backwards from the requested sequence until each of them is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pelton.api.errors import from_reply
from pelton.storage import Condition, integer, subject_condition, text
from pelton.streams.log import StreamLog

_SETTLED: Final = "SELECT CAST(subject AS BLOB), last FROM {} WHERE last<=? LIMIT ?"
_LATER: Final = "SELECT count(*), ifnull(min(first), 0) FROM {} WHERE last>? AND first<=?"


def last_of_each(log: StreamLog, filters: Sequence[str], up_to: int, limit: int) -> list[int]:
    """Return the last sequences, up to ``up_to``, of the subjects that match one of the filters, in ascending order.

    Flush the stream first. Raises TooManyResultsError if there are more than ``limit`` of them.
    """
    found = _settled(log, filters, up_to, limit)
    if up_to < log.state.last:
        _add_later(log, subject_condition(filters), up_to, limit, found)
    return sorted(found.values())


def _settled(log: StreamLog, filters: Sequence[str], up_to: int, limit: int) -> dict[str, int]:
    """Return the subjects that were not written after ``up_to``."""
    bounds: dict[str, int] = {}
    # One statement per filter: a single one for all would scan every subject.
    for each in filters:
        pairs = log.reader.subjects(_SETTLED, subject_condition([each]), up_to, limit + 1)
        bounds.update((text(subject), integer(last)) for subject, last in pairs)
        _check(log, len(bounds), limit)
    return {subject: _present(log, subject, bound) for subject, bound in bounds.items()}


def _present(log: StreamLog, subject: str, bound: int) -> int:
    if log.table.time_of(bound) is not None:
        return bound
    # Its last message was removed: the bound is higher than the last message left.
    row = log.table.last_where(bound, Condition("subject=?", (subject,)))
    return bound if row is None else row.seq


def _add_later(log: StreamLog, condition: Condition | None, up_to: int, limit: int, found: dict[str, int]) -> None:
    """Find the subjects that were written again since; ``first`` is a bound, so some may not have existed yet."""
    ((number, first),) = log.reader.subjects(_LATER, condition, up_to, up_to)
    missing = integer(number)
    if not missing:
        return
    for seq, subject in log.table.subjects_backward(integer(first), up_to, condition):
        if subject in found:
            continue
        found[subject] = seq
        _check(log, len(found), limit)
        missing -= 1
        if not missing:
            return


def _check(log: StreamLog, number: int, limit: int) -> None:
    if number > limit:
        raise from_reply(413, 0, "Too Many Results", stream=log.name)
