"""Looks through a whole stream, which take their time: for what messages contain, and for how many some subjects have.

A look goes on portion by portion until its time is over; where the rows of subjects tell that nothing matches, it
reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pelton.api import StoredMessage
from pelton.api.requests import FindMessages, FindMessagesReply, SubjectTotals, SubjectTotalsReply
from pelton.runtime import Clock, Deadline
from pelton.storage import intact, integer, subject_condition, text
from pelton.storage.messages import text_condition
from pelton.streams.direct import stored_message
from pelton.streams.log import StreamLog
from pelton.streams.lookups import ANY, LastMatches

_PORTION: Final = 50_000
_MOST_SUBJECTS: Final = 150_000
_NUMBER: Final = "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT ?)"
# With a limit, the subquery is not merged into the query, which would compute each rest four times.
_TOTALS: Final = (
    "SELECT CAST(iif(instr(rest, ?), substr(rest, 1, instr(rest, ?) - 1), rest) AS BLOB) AS name, sum(msgs) AS total "
    "FROM (SELECT substr(subject, CASE {} END) AS rest, msgs FROM {} LIMIT -1) "
    "GROUP BY name ORDER BY total DESC, name LIMIT ?"
)


class Look(NamedTuple):
    """A stream on a snapshot; ``is_left``: nobody waits for the answer any more."""

    log: StreamLog
    clock: Clock
    is_left: Callable[[], bool]


def find_messages(look: Look, request: FindMessages) -> FindMessagesReply:
    """Return messages that match; damaged ones are left out."""
    log, deadline, bounds = look.log, Deadline(look.clock, request.within), LastMatches(look.log.state)
    rows = {each: log.reader.bounds_of(subject_condition([each])) for each in request.filters or (">",)}
    there = {each: row for each, row in rows.items() if row.msgs}
    last, total = max((row.last for row in there.values()), default=0), sum(row.msgs for row in there.values())
    condition = text_condition(request.contains, subject_condition(list(there)))
    found, looked_at, at = list[StoredMessage](), 0, max(request.begin, 1)
    while at <= last and (number := request.limit - len(found)) > 0:
        at = log.table.next_seq(min(bounds.next_possible(at, each) for each in there)) or last + 1
        if at > last:
            break
        end = min(at + _PORTION - 1, last)
        scanned = log.table.scan(at, end, number, condition)
        end = scanned[-1].seq if len(scanned) == number else end
        found += [stored_message(row) for row in scanned if intact(row) and request.is_in(row.data)]
        if request.contains:
            looked_at += end - at + 1 if log.state.is_gapless else log.table.count(at, end)
        else:
            looked_at += len(scanned)
        is_whole = len(found) == total and request.begin <= 1
        at = last + 1 if is_whole else end + 1
        if deadline.is_over or look.is_left():
            break
    return FindMessagesReply(
        messages=tuple(found), looked_at=looked_at, next_begin=at if at <= last else 0, total=total
    )


def subject_totals(look: Look, request: SubjectTotals) -> SubjectTotalsReply:
    """Return how many messages the subjects have, summed up by a part of each."""
    state, until = look.log.state, f".{request.until}."
    every = state.subjects.parts(None, state.last)
    if state.db.value(_NUMBER.format(every.sql), (*every.bindings, _MOST_SUBJECTS + 1)) > _MOST_SUBJECTS:
        return SubjectTotalsReply()
    each = [(len(one), subject_condition([one]) or ANY) for one in request.filters]
    cases = " ".join(f"WHEN {condition.sql} THEN {begin}" for begin, condition in each)
    query = state.subjects.parts(subject_condition(request.filters), state.last)
    bindings = [until, until, *(value for _, condition in each for value in condition.bindings), *query.bindings]
    rows = state.db.execute(_TOTALS.format(cases, query.sql), (*bindings, request.limit))
    return SubjectTotalsReply(totals={text(name): integer(total) for name, total in rows})
