"""Direct gets (ADR-31) inside one snapshot, with nats-server's semantics.

A damaged message is never returned and never hides the ones before it: a batch ends before it, and a read that starts
with it raises CorruptMessageError.

**How many messages match a filter, and their bounds: counted once, then kept up to date.** Each batch reports how many
more messages match. To recount them for each batch would make a long read quadratic, so a :class:`FilterCount`
remembers its counts. They are valid as long as nothing was removed from the stream, which ``last - msgs`` shows: every
removal increases it, nothing decreases it. Messages appended since are counted separately.

**The last message of each subject, now or as it was at an earlier sequence.** The rows of subjects answer for those
that have not been written since. For the others, the stream is scanned backwards from the requested sequence until each
of them is found.

**Looks through a whole stream, which take their time: for what messages contain, and for how many some subjects have.**
A look goes on portion by portion until its time is over; where the rows of subjects tell that nothing matches, it reads
nothing.

**The last message of each subject without its payload, page by page: how a bucket's keys are listed.** One statement
joins the ``subjects`` table with the message rows. Payloads are not read, so checksums are not verified either. Pages
are in the order of subjects, so that each continues where the previous one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, cast

import msgspec

from pelton.api import (
    ConfigError,
    CorruptMessageError,
    DirectGet,
    DirectReply,
    LastHeaders,
    PeltonError,
    StoredMessage,
    WireMessage,
    api_error,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.direct import MAX_BYTES, MAX_SUBJECTS
from pelton.api.errors import from_reply
from pelton.api.requests import FindMessages, FindMessagesReply, SubjectTotals, SubjectTotalsReply
from pelton.runtime import Clock, Deadline
from pelton.storage import Condition, MessageRow, intact, integer, of_subject, subject_condition, text
from pelton.storage.damage import note_damaged_message
from pelton.storage.rows import text_condition
from pelton.streams.log import StreamLog
from pelton.streams.reader import ANY, LastMatches


class FilterCount:
    """The messages of a stream that match a filter ("" for all): bounds, total, and how many follow a mark."""

    first: int
    last: int
    total: int

    def __init__(self, subject_filter: str) -> None:
        self.condition: Condition | None = subject_condition([subject_filter] if subject_filter else [])
        self.first = self.last = self.total = 0
        self._gaps = self._seen = -1
        self._mark = self._after_mark = 0

    def refresh(self, log: StreamLog) -> None:
        """Bring the counts up to date with the stream."""
        gaps = log.state.last - log.state.msgs
        if gaps != self._gaps:
            bounds = log.reader.bounds_of(self.condition)
            self.first, self.last, self.total = bounds.first, bounds.last, bounds.msgs
            self._mark, self._after_mark = self.first, self.total
        elif log.state.last > self._seen:
            self._append(log)
        self._gaps, self._seen = gaps, log.state.last

    def _append(self, log: StreamLog) -> None:
        added = log.table.count(self._seen + 1, log.state.last, self.condition)
        if added:
            self.first = self.first if self.total else self._seen + 1
            self.last = log.state.last
            self.total += added
            self._after_mark += added

    def pending(self, log: StreamLog, seq: int) -> int:
        """Return how many match at or after ``seq``, and remember it."""
        if self.condition is None and log.state.is_gapless:
            return min(max(log.state.last - seq + 1, 0), self.total)
        if seq <= self.first:
            return self.total
        if seq > self.last:
            return 0
        if seq != self._mark:
            self._after_mark, self._mark = self._counted(log, seq), seq
        return self._after_mark

    def passed(self, seq: int, pending: int) -> None:
        """Remember that ``pending`` match after ``seq``, where the next batch is likely to begin."""
        self._mark, self._after_mark = seq + 1, pending

    def _counted(self, log: StreamLog, seq: int) -> int:
        """Count the shortest way: from the mark, from the first, or to the last."""
        count, condition = log.table.count, self.condition
        from_mark, from_first, to_last = abs(seq - self._mark), seq - self.first, self.last - seq
        if from_mark <= min(from_first, to_last):
            if seq > self._mark:
                return self._after_mark - count(self._mark, seq - 1, condition)
            return self._after_mark + count(seq, self._mark - 1, condition)
        if from_first < to_last:
            return self.total - count(self.first, seq - 1, condition)
        return count(seq, self.last, condition)


_SETTLED: Final = "SELECT CAST(subject AS BLOB), last FROM {} WHERE last<=? LIMIT ?+0"
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
        _check_intact(log, len(bounds), limit)
    return {subject: _present(log, subject, bound) for subject, bound in bounds.items()}


def _present(log: StreamLog, subject: str, bound: int) -> int:
    if log.table.time_of(bound) is not None:
        return bound
    # Its last message was removed: the bound is higher than the last message left.
    row = log.table.last_where(bound, of_subject(subject))
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
        _check_intact(log, len(found), limit)
        missing -= 1
        if not missing:
            return


def _check_intact(log: StreamLog, number: int, limit: int) -> None:
    if number > limit:
        raise from_reply(413, 0, "Too Many Results", stream=log.name)


_LARGEST: Final = (1 << 63) - 1
_SPANS: Final = 1000


def stored_message(row: MessageRow) -> StoredMessage:
    seq, ts, subject, hdr, data, _ = row
    return StoredMessage(subject, seq, ts, hdr or b"", data)


def wire_message(row: MessageRow) -> WireMessage:
    """Return an intact row as JSON carries it."""
    return WireMessage(subject=row.subject, seq=row.seq, hdrs=row.hdr or b"", data=row.data, time=rfc3339(row.ts))


class DirectReads:
    """Answers direct gets of one store, and caches their counts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._spans: dict[tuple[int, str], FilterCount] = {}

    def read(self, log: StreamLog, request: DirectGet) -> DirectReply:
        """Answer a request; raises ApiError, CorruptMessageError."""
        _check(log.name, request)
        if request.multi_last:
            return self._last_of_each(log, request)
        if request.batch and not request.last_by_subj:
            return self._batch(log, request)
        return DirectReply([self._intact(log, _row(log, request))])

    def _last_of_each(self, log: StreamLog, request: DirectGet) -> DirectReply:
        if request.up_to_seq > log.state.last and log.config.storage == "file":
            # As nats-server's file store.
            raise api_error("JSNoMessageFoundErr", stream=log.name)
        up_to = _up_to(log, request)
        found = last_of_each(log, request.multi_last, min(up_to, log.state.last), MAX_SUBJECTS)
        if not found:
            raise api_error("JSNoMessageFoundErr", stream=log.name)
        asked = [seq for seq in found if seq >= request.seq]
        wanted = asked[: request.batch] if request.batch > 0 else asked
        rows = (row for seq in wanted if (row := log.reader.get(seq)) is not None)
        messages = _taken(takewhile(intact, rows), request.max_bytes)
        if wanted and not messages:
            self._intact(log, log.reader.get(wanted[0]))
        last = messages[-1].seq if messages else 0
        return DirectReply(messages, len(asked) - len(messages), last, up_to)

    def _batch(self, log: StreamLog, request: DirectGet) -> DirectReply:
        span = self._span(log, request.next_by_subj)
        seq = _start(log, request)
        pending = span.pending(log, seq)
        if request.batch < 0:
            return DirectReply([], pending)
        rows = log.table.walk(max(seq, span.first), span.last, request.batch, span.condition)
        messages = _taken(rows, request.max_bytes)
        if not messages:
            self._intact(log, log.reader.next_row_of(seq, request.next_by_subj))
        last = messages[-1].seq
        span.passed(last, pending - len(messages))
        return DirectReply(messages, pending - len(messages), last)

    def _span(self, log: StreamLog, subject_filter: str) -> FilterCount:
        wanted = "" if subject_filter == ">" else subject_filter
        key = (log.id, wanted)
        span = self._spans.get(key)
        if span is None:
            if len(self._spans) >= _SPANS:
                self._spans.clear()
            span = self._spans[key] = FilterCount(wanted)
        span.refresh(log)
        return span

    def _intact(self, log: StreamLog, row: MessageRow | None) -> StoredMessage:
        if row is None:
            raise api_error("JSNoMessageFoundErr", stream=log.name)
        if not intact(row):
            raise corrupt_message(log.name, row.seq, self._path)
        return stored_message(row)


def corrupt_message(stream: str, seq: int, path: str) -> CorruptMessageError:
    note_damaged_message(path, stream, seq)
    return CorruptMessageError(stream, seq, path)


def _row(log: StreamLog, request: DirectGet) -> MessageRow | None:
    if request.last_by_subj:
        return log.reader.last_row_of(request.last_by_subj)
    seq = _start(log, request)
    if request.next_by_subj:
        return log.reader.next_row_of(seq, request.next_by_subj)
    return log.reader.next_row_of(seq, "") if request.start_time else log.reader.get(seq)


def _taken(rows: Iterable[MessageRow], max_bytes: int) -> list[StoredMessage]:
    """Return messages until they reach ``max_bytes``."""
    left = max_bytes or MAX_BYTES
    messages: list[StoredMessage] = []
    for seq, ts, subject, hdr, data, _ in rows:
        hdrs = hdr or b""
        messages.append(StoredMessage(subject, seq, ts, hdrs, data))
        left -= len(data) + len(hdrs) + (len(subject) if subject.isascii() else len(subject.encode()))
        if left <= 0:
            break
    return messages


def _start(log: StreamLog, request: DirectGet) -> int:
    if request.start_time:
        return log.reader.first_at(_time(log.name, request.start_time))
    return min(request.seq, _LARGEST)


def _up_to(log: StreamLog, request: DirectGet) -> int:
    if request.up_to_time:
        return log.reader.first_at(_time(log.name, request.up_to_time)) - 1
    return request.up_to_seq or log.state.last


# --- checks of a request


def _refused(stream: str, text: str) -> PeltonError:
    return from_reply(408, 10003, text, stream=stream)


def _time(stream: str, text: str) -> int:
    try:
        return parse_rfc3339(text)
    except ConfigError:
        raise _refused(stream, "Malformed Request") from None


def _check(stream: str, request: DirectGet) -> None:
    """Raise BadRequestError for a request that asks for nothing, or for two things at once."""
    seq, last, following, time = request.seq, request.last_by_subj, request.next_by_subj, request.start_time
    many = bool(request.multi_last)
    if seq < 0 or request.up_to_seq < 0:
        raise _refused(stream, "Malformed Request")
    for moment in (time, request.up_to_time):
        if moment:
            _time(stream, moment)
    if not (seq or last or following or time or many):
        raise _refused(stream, "Empty Request")
    if (
        (last and (seq or following or time or many or request.batch > 0))
        or (time and seq)
        or (following and many)
        or (request.up_to_seq and request.up_to_time)
    ):
        raise _refused(stream, "Bad Request")


_PORTION: Final = 50_000
_MOST_SUBJECTS: Final = 150_000
_NUMBER: Final = "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT ?+0)"
# With a limit, the subquery is not merged into the query, which would compute each rest four times.
_TOTALS: Final = (
    "SELECT CAST(iif(instr(rest, ?), substr(rest, 1, instr(rest, ?) - 1), rest) AS BLOB) AS name, sum(msgs) AS total "
    "FROM (SELECT substr(subject, CASE {} END) AS rest, msgs FROM {} LIMIT -1) "
    "GROUP BY name ORDER BY total DESC, name LIMIT ?+0"
)


class Look(msgspec.Struct, frozen=True):
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
    last = min(last, request.upto or last)
    condition = text_condition(request.contains, subject_condition(list(there)))
    found, looked_at, at = list[StoredMessage](), 0, max(request.begin, 1)
    while at <= last and (number := request.limit - len(found)) > 0:
        at = log.table.next_seq(min(bounds.next_possible(at, each) for each in there)) or last + 1
        if at > last:
            break
        end = min(at + _PORTION - 1, last)
        scanned = log.table.scan(
            at, end, number, _untaken((log.id, at, end), condition) if request.untaken else condition
        )
        end = scanned[-1].seq if len(scanned) == number else end
        found += [stored_message(row) for row in scanned if intact(row) and request.is_in(row.data)]
        if request.contains:
            looked_at += end - at + 1 if log.state.is_gapless else log.table.count(at, end)
        else:
            looked_at += len(scanned)
        is_whole = len(found) == total and request.begin <= 1 and not request.upto
        at = last + 1 if is_whole else end + 1
        if deadline.is_over or look.is_left():
            break
    return FindMessagesReply(
        messages=tuple(found), looked_at=looked_at, next_begin=at if at <= last else 0, total=total
    )


_UNTAKEN: Final = (
    "seq NOT IN (SELECT d.seq FROM consumers c JOIN pending d ON d.consumer=c.id "
    "WHERE c.stream=? AND d.seq BETWEEN ? AND ?) AND ({})"
)


def _untaken(where: tuple[int, int, int], condition: Condition | None) -> Condition:
    """Return the SQL for messages that no consumer has delivered and not settled, and that meet a condition.

    ``where``: the stream, and the bounds of sequences.
    """
    given = condition or Condition("1", ())
    return Condition(_UNTAKEN.format(given.sql), (*where, *given.bindings))


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


_PAGE: Final = (
    "SELECT s.subject, m.seq, m.hdr FROM (SELECT subject, last FROM {} ORDER BY subject LIMIT ?+0) s "
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
