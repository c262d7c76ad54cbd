"""Finding jobs by id, key, name or argument. A queue may hold millions, so a search ends after some time and says so.

Design: a text that a job contains stands in its message as it is, or as JSON writes it. Of a file, SQL looks for it on
a snapshot, some thousand messages at a time, so that only those that hold it leave SQLite; of a cluster, messages are
read one by one. Each is then read as what it is, to see whether it is the key, the name or an argument that matches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

import msgspec

from pelton.api import ConfigError, JobNotFoundError, StoreBusyError, StreamInfoRequest, StreamNotFoundError
from pelton.api.json_values import UNREADABLE
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.observe.streams import is_embedded
from pelton.observe.summaries import JobSearch
from pelton.queue import DeadLetter, JobInfo, Outcome
from pelton.queue.backing.scan import stored_messages
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.states import Envelope, decode_envelope
from pelton.runtime import Deadline

_CHUNK: Final = 50_000
_STREAM: Final = "SELECT id FROM streams WHERE name=?"
_CHUNK_END: Final = "SELECT count(*), max(seq) FROM (SELECT seq FROM {} WHERE seq>=? ORDER BY seq LIMIT ?)"
_MATCHING: Final = (
    "SELECT seq, data FROM {} WHERE seq BETWEEN ? AND ? AND (instr(data, ?) OR instr(data, ?)) ORDER BY seq LIMIT ?"
)
_outcome: Final = msgspec.json.Decoder(Outcome).decode
_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_Read = Callable[[int, bytes, "_Wanted"], str]


async def find_jobs(
    jet: Jet, queue: str, text: str, *, begin: int = 0, limit: int = 25, within: float = 1.0
) -> JobSearch:
    """Return jobs of a queue whose id is ``text``, or whose key, name or arguments contain it; at most ``limit``.

    First the one of that id, then dead letters, jobs in the history (by key and name: it has no arguments), and those
    that have not ended, oldest first. It ends after about ``within`` seconds; ``next_begin`` says where to go on among
    the latter, by ``begin``. Raises QueueNotFoundError, ConfigError.
    """
    opened, names, wanted = await jet.queue(queue, create=False), QueueNames(queue), _Wanted(text)
    found: dict[str, JobInfo] = {}

    async def add(ids: list[str]) -> None:
        for job_id in ids:
            if job_id and job_id not in found and len(found) < limit:
                with suppress(JobNotFoundError, ConfigError):
                    found[job_id] = await opened.get(job_id)

    deadline, looked_at = Deadline(jet.runtime.clock, within), 0
    if not begin:
        await add([text])
        for name, read, share in ((names.dead, _id_of_letter, 0.25), (names.history, _id_of_outcome, 0.5)):
            part = await _look(jet, name, wanted, read, 1, limit, within * share)
            await add(part.ids)
            looked_at += part.looked_at
    left = max(deadline.left or 0.0, within / 4)
    part = await _look(jet, names.jobs, wanted, _id_of_job, begin or 1, limit - len(found), left)
    await add(part.ids)
    return JobSearch(
        queue=queue, jobs=tuple(found.values()), looked_at=looked_at + part.looked_at, next_begin=part.next_begin
    )


class _Wanted:
    """The text that is looked for, as it stands in messages."""

    def __init__(self, text: str) -> None:
        self.plain = text.encode()
        self.in_json = msgspec.json.encode(text)[1:-1]
        self.text = text

    def is_in(self, data: bytes) -> bool:
        return self.plain in data or self.in_json in data

    def matches(self, job: str, key: str, args: bytes = b"") -> bool:
        return self.text in job or self.text in key or self.is_in(args)


class _Part(NamedTuple):
    """Ids of jobs, how many messages were looked at, and where to go on; 0 at the end."""

    ids: list[str]
    looked_at: int
    next_begin: int


def _id_of_job(seq: int, data: bytes, wanted: _Wanted) -> str:
    with suppress(*UNREADABLE):
        envelope: Envelope = decode_envelope(data)
        if envelope.timetable is None or envelope.id:
            return (envelope.id or str(seq)) if wanted.matches(envelope.job, envelope.key, bytes(envelope.args)) else ""
    return ""


def _id_of_letter(_seq: int, data: bytes, wanted: _Wanted) -> str:
    with suppress(*UNREADABLE):
        letter = _dead(data)
        found = letter.outcome
        return found.id if wanted.matches(found.job, found.key, bytes(letter.envelope.args)) else ""
    return ""


def _id_of_outcome(_seq: int, data: bytes, wanted: _Wanted) -> str:
    with suppress(*UNREADABLE):
        outcome = _outcome(data)
        return outcome.id if wanted.matches(outcome.job, outcome.key) else ""
    return ""


async def _look(jet: Jet, name: str, wanted: _Wanted, read: _Read, begin: int, limit: int, within: float) -> _Part:
    if limit < 1:
        return _Part([], 0, begin)
    deadline = Deadline(jet.runtime.clock, within)
    if is_embedded(jet):
        # A store in memory has no snapshots, and one at rest may just have been opened.
        with suppress(ConfigError, StoreBusyError):
            return await _by_sql(jet, name, wanted, read, begin, limit, deadline)
    return await _one_by_one(jet, name, wanted, read, begin, limit, deadline)


async def _by_sql(
    jet: Jet, name: str, wanted: _Wanted, read: _Read, begin: int, limit: int, deadline: Deadline
) -> _Part:
    ids, looked_at = list[str](), 0
    async with jet.read() as view:
        rows = await view.sql(_STREAM, [name])
        if not rows:
            return _Part([], 0, 0)
        table = f"m_{rows[0][0]}"
        while not deadline.is_over:
            ((count, end),) = await view.sql(_CHUNK_END.format(table), [begin, _CHUNK])
            if not count:
                return _Part(ids, looked_at, 0)
            values = [begin, end, wanted.plain, wanted.in_json, limit - len(ids)]
            matching = await view.sql(_MATCHING.format(table), values)
            ids += [job_id for seq, data in matching if (job_id := read(seq, data, wanted))]
            if len(matching) == values[-1]:
                # There may be more of them in this chunk.
                end, count = matching[-1][0], 0
            looked_at, begin = looked_at + count, end + 1
            if len(ids) >= limit:
                break
    return _Part(ids, looked_at, begin)


async def _one_by_one(
    jet: Jet, name: str, wanted: _Wanted, read: _Read, begin: int, limit: int, deadline: Deadline
) -> _Part:
    try:
        info = await jet.backend.call(StreamInfoRequest(name=name))
    except StreamNotFoundError:
        return _Part([], 0, 0)
    ids, looked_at = list[str](), 0
    async with aclosing(stored_messages(Stream(jet.backend, info.config, jet.runtime), ">", begin)) as messages:
        async for stored in messages:
            looked_at += 1
            if wanted.is_in(stored.data) and (job_id := read(stored.seq, stored.data, wanted)):
                ids.append(job_id)
            if len(ids) >= limit or deadline.is_over:
                return _Part(ids, looked_at, stored.seq + 1)
    return _Part(ids, looked_at, 0)
