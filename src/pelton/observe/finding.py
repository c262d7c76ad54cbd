"""Finding jobs by id, key, name or argument, jobs by their keys, and one job with what it waits for.

**Finding jobs by id, key, name or argument. A queue may hold millions, so a search ends after some time and says so.**
A text that a job contains stands in its message as it is, or as JSON writes it. The store looks for both; what it finds
is then read as what it is, to see whether it is the key, the name or an argument that matches.

**Jobs by their keys: how many of each key have not ended, and the jobs of one key.** In an exclusive queue, subjects
name keys, and the store counts the messages of each subject. Elsewhere only the jobs themselves name their keys, so
there a sample of the oldest is counted, and the jobs of a key are looked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from pelton.api import ConfigError, JobNotFoundError, MessageNotFoundError, StoredMessage, StreamNotFoundError
from pelton.api.json_values import UNREADABLE
from pelton.api.requests import FindMessages, FindMessagesReply, SubjectTotals
from pelton.api.wording import moment_text
from pelton.connect import Jet
from pelton.jet.stream import last_of
from pelton.observe.queues import dead_letter, job_details, pauses_of, queue_looked_at, workers_present
from pelton.observe.summaries import JobDetails, JobSearch, JobsOfKey, KeyCount, KeyCounts
from pelton.queue import DeadLetter, JobInfo, Outcome
from pelton.queue.model.naming import ALL_PRIORITIES, PLACE, QueueNames, decode_key, encode_key
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import Attempt, Envelope, JobStep, decode_envelope, decode_step
from pelton.queue.queue import look_at_queue
from pelton.queue.run.calls import history_of
from pelton.queue.scan import last_attempt, stored_messages, unfinished_job
from pelton.queue.views import envelope_of
from pelton.runtime import Deadline

_outcome: Final = msgspec.json.Decoder(Outcome).decode
_dead: Final = msgspec.json.Decoder(DeadLetter).decode


async def find_jobs(
    jet: Jet, queue: str, text: str, *, begin: int = 0, limit: int = 25, within: float = 1.0
) -> JobSearch:
    """Return jobs of a queue whose id is ``text``, or whose key, name or arguments contain it; at most ``limit``.

    First the one of that id, then dead letters, jobs in the history (by key and name: it has no arguments), and those
    that have not ended, oldest first. It ends after about ``within`` seconds; ``next_begin`` says where to go on among
    the latter, by ``begin``. Raises QueueNotFoundError, ConfigError.
    """
    opened, names, wanted = await queue_looked_at(jet, queue), QueueNames(queue), _Wanted(text)
    found: dict[str, JobInfo] = {}

    async def add(ids: list[str]) -> None:
        for job_id in ids:
            if job_id and job_id not in found and len(found) < limit:
                with suppress(JobNotFoundError, ConfigError):
                    found[job_id] = await opened.get(job_id)

    deadline, looked_at = Deadline(jet.runtime.clock, within), 0
    request = FindMessages(stream=names.jobs, contains=wanted.texts, begin=begin, limit=limit)
    if not begin:
        await add([text])
        for name, id_of, share in ((names.dead, wanted.in_letter, 0.25), (names.history, wanted.in_outcome, 0.5)):
            ids, part = await look(jet, replace(request, stream=name, within=within * share), id_of)
            await add(ids)
            looked_at += part.looked_at
    left = max(deadline.left or 0.0, within / 4)
    ids, part = await look(jet, replace(request, within=left, limit=limit - len(found)), wanted.in_job)
    await add(ids)
    return JobSearch(
        queue=queue, jobs=tuple(found.values()), looked_at=looked_at + part.looked_at, next_begin=part.next_begin
    )


async def look(
    jet: Jet, request: FindMessages, id_of: Callable[[StoredMessage], str]
) -> tuple[list[str], FindMessagesReply]:
    """Return the ids of jobs in the messages that are found, and what there is to know of the whole look.

    ``id_of`` returns an empty one for a message that was not meant.
    """
    deadline, ids, number = Deadline(jet.runtime.clock, request.within), list[str](), request.limit
    whole = FindMessagesReply(next_begin=request.begin)
    while len(ids) < request.limit:
        left = deadline.left or 0.0
        try:
            reply = await jet.backend.call(replace(request, begin=whole.next_begin, limit=number, within=left))
        except StreamNotFoundError:
            return [], FindMessagesReply()
        whole = replace(reply, messages=(), looked_at=whole.looked_at + reply.looked_at)
        for stored in reply.messages:
            if len(ids) == request.limit:
                whole.next_begin = stored.seq
                break
            if job_id := id_of(stored):
                ids.append(job_id)
        # Where most were not meant, more are asked for.
        number *= 2
        if not whole.next_begin or deadline.is_over:
            break
    return ids, whole


class _Wanted:
    """The text that is looked for, as it is and as it stands in JSON: the id of a job where it is found, or nothing."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.texts = (text, msgspec.json.encode(text)[1:-1].decode())
        self._forms = [each.encode() for each in self.texts]

    def _matches(self, job: str, key: str, args: bytes = b"") -> bool:
        return self.text in job or self.text in key or any(each in args for each in self._forms)

    def in_job(self, stored: StoredMessage) -> str:
        with suppress(*UNREADABLE):
            job: Envelope = decode_envelope(stored.data)
            if (job.timetable is None or job.id) and self._matches(job.job, job.key, bytes(job.args)):
                return job.id or str(stored.seq)
        return ""

    def in_letter(self, stored: StoredMessage) -> str:
        with suppress(*UNREADABLE):
            letter = _dead(stored.data)
            found = letter.outcome
            return found.id if self._matches(found.job, found.key, bytes(letter.envelope.args)) else ""
        return ""

    def in_outcome(self, stored: StoredMessage) -> str:
        with suppress(*UNREADABLE):
            outcome = _outcome(stored.data)
            return outcome.id if self._matches(outcome.job, outcome.key) else ""
        return ""


_SAMPLE: Final = 500


async def key_counts(jet: Jet, queue: str, *, limit: int = 25) -> KeyCounts:
    """Return how many jobs that have not ended each key of a queue has: at most ``limit`` keys, those with most first.

    Jobs that wait for their time (scheduled) are not counted. Raises QueueNotFoundError, ConfigError.
    """
    opened, names, counts, sampled = await queue_looked_at(jet, queue), QueueNames(queue), None, 0
    if opened.exclusive:
        request = SubjectTotals(stream=names.jobs, filters=names.keyed_jobs, until=PLACE, limit=limit)
        counts = (await jet.backend.call(request)).totals
    if counts is None:
        counts, sampled = await _sample_keys(jet, names)
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
    opened, names = await queue_looked_at(jet, queue), QueueNames(queue)
    # Only in an exclusive queue, subjects name keys.
    filters, text = names.jobs_of_key(encode_key(key)), f'"key":{msgspec.json.encode(key).decode()}'
    where = {"filters": filters} if opened.exclusive else {"contains": (text,)}
    request = FindMessages(stream=names.jobs, begin=begin, within=within, limit=limit, **where)

    def id_of(stored: StoredMessage) -> str:
        envelope = envelope_of(names, stored)
        is_wanted = envelope.key == key and (envelope.timetable is None or envelope.id)
        return (envelope.id or str(stored.seq)) if is_wanted else ""

    (ids, part), jobs = await look(jet, request, id_of), []
    for job_id in ids:
        # A job that has ended meanwhile and left no trace.
        with suppress(JobNotFoundError):
            jobs.append(await opened.get(job_id))
    total = part.total if opened.exclusive else -1
    return JobsOfKey(queue=queue, key=key, total=total, jobs=tuple(jobs), next_begin=part.next_begin)


async def _sample_keys(jet: Jet, names: QueueNames) -> tuple[dict[str, int], int]:
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


# --- one job with all that is known of it, and what it waits for: its time, a limit, a pause, its key, a worker


async def job_with_details(jet: Jet, queue: str, job_id: str) -> JobDetails:
    """Return a job with its arguments, the errors of its attempts, and what it waits for.

    Raises JobNotFoundError, QueueNotFoundError.
    """
    info, names = await job_details(jet, queue, job_id), QueueNames(queue)
    letter = await dead_letter(jet, queue, job_id)
    known = None
    if info.outcome is None:
        with suppress(StreamNotFoundError):
            known = await last_attempt(await jet.stream(names.attempts), names, job_id)
    errors = known.errors if known is not None else () if info.outcome is None else info.outcome.errors
    arguments = bytes(letter.envelope.args) if letter is not None else await _arguments(jet, names, job_id)
    history = list[JobStep]()
    if known is not None or info.state == "running":
        running = await jet.stream(names.running)
        history = await history_of(running, names, job_id)
        if (anew := await last_of(running, names.memory_subject(job_id, "round"))) is not None:
            arguments = bytes(decode_step(anew.data).result)
    waits_for, blocked_by = await _wait_of(jet, names, info, known)
    return JobDetails(
        job=info, arguments=arguments, errors=errors, is_dead=letter is not None, waits_for=waits_for,
        blocked_by=blocked_by, history=tuple(history),
    )  # fmt: skip


async def _arguments(jet: Jet, names: QueueNames, job_id: str) -> bytes | None:
    stored = await unfinished_job(await jet.stream(names.jobs), names, job_id)
    if stored is not None:
        with suppress(*UNREADABLE):
            return bytes(decode_envelope(stored.data).args)
    return None


class _Wait(NamedTuple):
    """What a job waits for, and the id of the job that has to end first; empty if there is none."""

    reason: str
    blocked_by: str = ""


async def _wait_of(jet: Jet, names: QueueNames, job: JobInfo, known: Attempt | None) -> _Wait:
    if known is not None and (wait := job.waits_for) is not None:
        until = f", until {moment_text(wait.until)}" if wait.until else ""
        return _Wait(f"{known.waits.removeprefix('it waits for ')}, since {moment_text(wait.since)}{until}")
    if known is not None and job.state == "stuck":
        return _Wait(f"a worker whose code can take it: {known.waits}")
    if job.state in ("scheduled", "retrying"):
        return _Wait(f"its time: {moment_text(job.due)}" if job.due else "its time")
    if job.state == "held":
        return _Wait(f"a limit of {job.limit}" if job.limit else "a limit")
    if job.state == "running":
        with suppress(StreamNotFoundError, MessageNotFoundError):
            await (await jet.stream(names.control)).get_last_message(names.cancel_subject(job.id))
            return _Wait("its function, which was asked to end: it was cancelled")
    return await _wait_of_pending(jet, names, job, known) if job.state == "pending" else _Wait("")


async def _wait_of_pending(jet: Jet, names: QueueNames, job: JobInfo, known: Attempt | None) -> _Wait:
    pauses = await pauses_of(jet, names)
    if pauses.is_all_paused:
        return _Wait("the queue is paused")
    if job.key in pauses.paused_keys or job.job in pauses.paused_jobs:
        return _Wait(f"jobs of its {'key' if job.key in pauses.paused_keys else 'name'} are paused")
    if (first := await _first_of_key(jet, names, job)) != job.id:
        # It may have ended meanwhile.
        with suppress(JobNotFoundError):
            state = (await job_details(jet, names.queue, first)).state
            return _Wait(f"its key: job {first} comes first, which is {state}", first)
    if known is not None and known.waits:
        # Such as that no worker so far knows its name.
        return _Wait(known.waits)
    return _Wait("a worker that is free" if await workers_present(jet, names.queue) else "a worker: none is there")


async def _first_of_key(jet: Jet, names: QueueNames, job: JobInfo) -> str:
    """Return which of the jobs of a key is the oldest, in an exclusive queue; elsewhere, the job itself."""
    if not job.key or not (await look_at_queue(jet, names)).exclusive:
        return job.id
    key = encode_key(job.key)
    filters = tuple(subject for rank in ALL_PRIORITIES for subject in names.subjects_of_key(key, rank))
    found = (await jet.backend.call(FindMessages(stream=names.jobs, filters=filters, limit=1))).messages
    return job_id_in(found[0].data, found[0].seq) if found else job.id
