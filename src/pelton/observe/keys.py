"""Jobs by their keys: how many of each have not ended, and those of one key.

Design: in an exclusive queue, subjects name keys, and the store counts the messages of each subject. Elsewhere only
the jobs themselves name their keys, so there a sample of the oldest is counted, and the jobs of a key are looked for.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from pelton.api import JobNotFoundError, StoredMessage
from pelton.api.json_values import UNREADABLE
from pelton.api.requests import FindMessages, SubjectTotals
from pelton.connect import Jet
from pelton.observe.finding import look
from pelton.observe.summaries import JobsOfKey, KeyCount, KeyCounts
from pelton.queue.backing.scan import stored_messages
from pelton.queue.model.naming import PLACE, QueueNames, decode_key, encode_key
from pelton.queue.model.states import decode_envelope

_SAMPLE: Final = 500


async def key_counts(jet: Jet, queue: str, *, limit: int = 25) -> KeyCounts:
    """Return how many jobs that have not ended each key of a queue has: at most ``limit`` keys, those with most first.

    Jobs that wait for their time (scheduled) are not counted. Raises QueueNotFoundError, ConfigError.
    """
    opened, names, counts, sampled = await jet.queue(queue, create=False), QueueNames(queue), None, 0
    if opened.exclusive:
        request = SubjectTotals(stream=names.jobs, filters=names.keyed_jobs, until=PLACE, limit=limit)
        counts = (await jet.backend.call(request)).totals
    if counts is None:
        counts, sampled = await _sampled(jet, names)
    else:
        counts = {decode_key(key): jobs for key, jobs in counts.items()}
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
    # Only in an exclusive queue, subjects name keys.
    filters, text = names.jobs_of_key(encode_key(key)), f'"key":{msgspec.json.encode(key).decode()}'
    where = {"filters": filters} if opened.exclusive else {"contains": (text,)}
    request = FindMessages(stream=names.jobs, begin=begin, within=within, limit=limit, **where)

    def id_of(stored: StoredMessage) -> str:
        with suppress(*UNREADABLE):
            envelope = decode_envelope(stored.data)
            if envelope.key == key and (envelope.timetable is None or envelope.id):
                return envelope.id or str(stored.seq)
        return ""

    (ids, part), jobs = await look(jet, request, id_of), []
    for job_id in ids:
        # One that has ended meanwhile and left no trace.
        with suppress(JobNotFoundError):
            jobs.append(await opened.get(job_id))
    total = part.total if opened.exclusive else -1
    return JobsOfKey(queue=queue, key=key, total=total, jobs=tuple(jobs), next_begin=part.next_begin)


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
