"""Jobs by their keys: how many of each have not ended, and those of one key.

Design: in an exclusive queue, subjects name keys, and the store counts the messages of each subject. Elsewhere only
the jobs themselves name their keys, so there a sample of the oldest is counted, and the jobs of a key are looked for.
On a file, SQL reads snapshots, some thousand messages at a time, so that every call ends in a bounded time.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

import msgspec

from pelton.api import ConfigError, JobNotFoundError, StoreBusyError
from pelton.api.json_values import UNREADABLE
from pelton.connect import Jet
from pelton.jet import SqlReads, Stream
from pelton.observe.streams import is_embedded
from pelton.observe.summaries import JobsOfKey, KeyCount, KeyCounts
from pelton.queue import JobInfo, Queue
from pelton.queue.backing.scan import messages_of_filters, stored_messages
from pelton.queue.model.naming import PLACE, QueueNames, decode_key, encode_key
from pelton.queue.model.states import decode_envelope
from pelton.runtime import Deadline

_SAMPLE: Final = 500
_MOST_SUBJECTS: Final = 150_000
_MOST_ASKED: Final = 20_000
"""So many subjects a cluster is asked for, which names them all."""
_CHUNK: Final = 200_000
_STREAM: Final = "SELECT id, subjects_upto FROM streams JOIN stream_state USING(id) WHERE name=?"
_NUMBER: Final = "SELECT count(*) FROM (SELECT 1 FROM subjects WHERE stream=? LIMIT ?)"
# The subjects of the newest messages are not counted yet (docs/file-format.md). A job may have a place of its own.
_COUNTS: Final = (
    "WITH found(subject, number) AS (SELECT subject, msgs FROM subjects WHERE stream=:stream AND msgs>0 "
    "AND subject>=:low AND subject<:high UNION ALL SELECT subject, 1 FROM {} "
    "WHERE seq>:upto AND subject>=:low AND subject<:high) "
    "SELECT iif(instr(rest, :place), substr(rest, 1, instr(rest, :place) - 1), rest) AS key, sum(number) AS total "
    "FROM (SELECT substr(subject, :skip + instr(substr(subject, :skip), '.')) AS rest, number FROM found) "
    "GROUP BY key ORDER BY total DESC, key LIMIT :limit"
)
_BOUNDS: Final = "SELECT min(first), max(last), sum(msgs) FROM subjects WHERE stream=:stream AND msgs>0 AND {}"
_NEWER: Final = "SELECT count(*) FROM {} WHERE seq>:upto AND {}"
_NEXT: Final = "SELECT min(seq) FROM {} WHERE seq>=?"
_MATCHING: Final = "SELECT seq, data FROM {} WHERE seq BETWEEN :begin AND :end AND {} ORDER BY seq LIMIT :limit"


async def key_counts(jet: Jet, queue: str, *, limit: int = 25) -> KeyCounts:
    """Return how many jobs that have not ended each key of a queue has: at most ``limit`` keys, those with most first.

    Jobs that wait for their time (scheduled) are not counted. Raises QueueNotFoundError, ConfigError.
    """
    opened, names = await jet.queue(queue, create=False), QueueNames(queue)
    counts: dict[str, int] | None = None
    if opened.exclusive:
        counts = await (_counted(jet, names, limit) if is_embedded(jet) else _told(jet, names))
    sampled = 0
    if counts is None:
        counts, sampled = await _sampled(jet, names)
    most = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:limit]
    return KeyCounts(queue=queue, keys=tuple(KeyCount(key=key, jobs=jobs) for key, jobs in most), sampled=sampled)


async def jobs_of_key(
    jet: Jet, queue: str, key: str, *, begin: int = 0, limit: int = 25, within: float = 0.1
) -> JobsOfKey:
    """Return the jobs of a key that have not ended, oldest first, at most ``limit``.

    It looks for about ``within`` seconds; ``next_begin`` says where to go on, by ``begin``. Raises
    QueueNotFoundError, ConfigError.
    """
    opened, names = await jet.queue(queue, create=False), QueueNames(queue)
    search = _Search(names, key, is_keyed=opened.exclusive)
    part = await _look(jet, search, begin, limit, Deadline(jet.runtime.clock, within))
    jobs = await _infos(opened, part.ids)
    return JobsOfKey(queue=queue, key=key, total=part.total, jobs=tuple(jobs), next_begin=part.next_begin)


class _Search:
    """What jobs of a key look like, by their subjects or, if those do not tell (``is_keyed``), by their contents."""

    def __init__(self, names: QueueNames, key: str, *, is_keyed: bool) -> None:
        self.names = names
        self.key = key
        form = encode_key(key)
        self.is_keyed = is_keyed
        self.filters = names.jobs_of_key(form) if is_keyed else (">",)
        self.ranges = [_range(each) for each in self.filters] if is_keyed else []
        self.text = b'"key":' + msgspec.json.encode(key)

    def id_of(self, seq: int, data: bytes) -> str:
        """Return the id of a job of the key; empty for another message."""
        with suppress(*UNREADABLE):
            envelope = decode_envelope(data)
            if envelope.key == self.key and (envelope.timetable is None or envelope.id):
                return envelope.id or str(seq)
        return ""


def _range(wanted: str) -> tuple[str, str]:
    """Return from which subject on, and before which, those of a filter are; twice the same for a single subject."""
    prefix = wanted.removesuffix(">")
    # "/" is the character after the dot.
    return (wanted, wanted) if prefix == wanted else (prefix, f"{prefix[:-1]}/")


class _Part(NamedTuple):
    """Ids of jobs, where to go on, 0 at the end, and how many there are, -1 if that is not known."""

    ids: list[str]
    next_begin: int
    total: int


async def _infos(opened: Queue, ids: list[str]) -> list[JobInfo]:
    found = []
    for job_id in ids:
        # One that has ended meanwhile and left no trace.
        with suppress(JobNotFoundError):
            found.append(await opened.get(job_id))
    return found


async def _look(jet: Jet, search: _Search, begin: int, limit: int, deadline: Deadline) -> _Part:
    if is_embedded(jet):
        # A store in memory has no snapshots, and one at rest may just have been opened.
        with suppress(ConfigError, StoreBusyError):
            return await _by_sql(jet, search, begin, limit, deadline)
    stream, ids = await jet.stream(search.names.jobs), list[str]()
    total = await _number(stream, search) if search.is_keyed else -1
    if not total:
        return _Part(ids, 0, 0)
    async with aclosing(messages_of_filters(stream, search.filters, begin or 1)) as found:
        async for stored in found:
            if job_id := search.id_of(stored.seq, stored.data):
                ids.append(job_id)
            if len(ids) == total and not begin:
                break
            if len(ids) >= limit or deadline.is_over:
                return _Part(ids, stored.seq + 1, total)
    return _Part(ids, 0, total)


async def _number(stream: Stream, search: _Search) -> int:
    """Return how many messages the subjects of a key have."""
    infos = [await stream.info(subjects_filter=each) for each in search.filters]
    return sum(sum((info.state.subjects or {}).values()) for info in infos)


async def _by_sql(jet: Jet, search: _Search, begin: int, limit: int, deadline: Deadline) -> _Part:
    async with jet.read() as view:
        place = await _place(view, search)
        ids, at = list[str](), max(begin, 1)
        while not (begin == 0 and len(ids) == place.total):
            # Where the rows of subjects tell that there is none, nothing is read.
            if at <= place.upto and search.is_keyed:
                at = max(at, place.first) if at <= place.last else place.upto + 1
            ((at,),) = await view.sql(_NEXT.format(place.table), [at])
            if at is None:
                break
            condition, bindings = place.condition, {**place.bindings, "begin": at, "limit": limit - len(ids)}
            bindings["end"] = min(at + _CHUNK - 1, place.last if at <= place.last else at + _CHUNK - 1)
            rows = await view.sql(_MATCHING.format(place.table, condition), bindings)
            ids += [job_id for seq, data in rows if (job_id := search.id_of(seq, data))]
            at = rows[-1][0] + 1 if len(rows) == bindings["limit"] else bindings["end"] + 1
            if len(ids) >= limit or deadline.is_over:
                return _Part(ids, 0 if begin == 0 and len(ids) == place.total else at, place.total)
    return _Part(ids, 0, place.total)


class _Place(NamedTuple):
    """Where the jobs of a key are: their table, a condition, and what the rows of subjects tell up to a sequence."""

    table: str
    condition: str
    bindings: dict[str, Any]
    first: int
    last: int
    upto: int
    total: int


async def _place(view: SqlReads, search: _Search) -> _Place:
    ((stream, upto),) = await view.sql(_STREAM, [search.names.jobs])
    table = f"m_{stream}"
    if not search.is_keyed:
        return _Place(table, "instr(data, :text)", {"text": search.text}, 1, 0, 0, -1)
    there, bindings = list[str](), dict[str, Any]()
    first, last, total = 0, 0, 0
    for number, (low, high) in enumerate(search.ranges):
        is_range = low != high
        condition = f"subject>=:low{number} AND subject<:high{number}" if is_range else f"subject=:low{number}"
        values = {f"low{number}": low, f"high{number}": high}
        ((lowest, highest, msgs),) = await view.sql(_BOUNDS.format(condition), {"stream": stream, **values})
        ((newer,),) = await view.sql(_NEWER.format(table, condition), {"upto": upto, **values})
        if msgs or newer:
            there.append(condition)
            bindings |= values
            total += (msgs or 0) + newer
        if msgs:
            first, last = min(first or lowest, lowest), max(last, highest)
    return _Place(table, f"({' OR '.join(there) or '0'})", bindings, first, last, upto, total)


# --- counts


async def _counted(jet: Jet, names: QueueNames, limit: int) -> dict[str, int] | None:
    """Return the counts of the keys with most jobs; None if that would take too long, or there is no snapshot."""
    with suppress(ConfigError, StoreBusyError):
        async with jet.read() as view:
            ((stream, upto),) = await view.sql(_STREAM, [names.jobs])
            ((number,),) = await view.sql(_NUMBER, [stream, _MOST_SUBJECTS + 1])
            if number > _MOST_SUBJECTS:
                return None
            # All ranks lie between the first and the last; "/" is the character after the dot.
            bounds = {"low": f"{names.key_ranks[0]}.", "high": f"{names.key_ranks[-1]}/"}
            values = {"stream": stream, "upto": upto, "limit": limit, "skip": len(names.root) + 2}
            rows = await view.sql(_COUNTS.format(f"m_{stream}"), {**values, **bounds, "place": f".{PLACE}."})
            return {decode_key(key): jobs for key, jobs in rows}
    return await _told(jet, names)


async def _told(jet: Jet, names: QueueNames) -> dict[str, int] | None:
    """Return the counts of the keys as the subjects of the stream tell them; None if they are too many."""
    stream = await jet.stream(names.jobs)
    if (await stream.info()).state.num_subjects > _MOST_ASKED:
        return None
    counts = Counter[str]()
    for keyed in names.keyed_jobs:
        info = await stream.info(subjects_filter=keyed)
        for subject, jobs in (info.state.subjects or {}).items():
            counts[decode_key(names.key_of_job(subject))] += jobs
    return dict(counts)


async def _sampled(jet: Jet, names: QueueNames) -> tuple[dict[str, int], int]:
    """Return the counts of keys among the oldest jobs, and how many those are."""
    counts, looked_at = Counter[str](), 0
    async with aclosing(stored_messages(await jet.stream(names.jobs), ">")) as messages:
        async for stored in messages:
            if names.is_job(stored.subject) and not names.is_later(stored.subject):
                looked_at += 1
                with suppress(*UNREADABLE):
                    counts[decode_envelope(stored.data).key] += 1
            if looked_at == _SAMPLE:
                break
    counts.pop("", None)
    return dict(counts), looked_at
