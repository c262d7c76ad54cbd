"""Jobs and dead letters as lists: a page at a time, each bounded in rows and in time, however many there are.

A page ends when it is full, or after some time; its cursor says where to go on. What a list shows is read from where
it is known: jobs that run from what workers tell and have begun, those that were given back from their deliveries, by
the time when they are due, and all others from the messages of the queue, from either end. Where several of these make
up a state, they are merged by their sequences. On a cluster, whose servers do not list deliveries, all jobs are read.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from pelton.api import ConfigError, MessageNotFoundError, StoredMessage, StreamInfoRequest, StreamNotFoundError
from pelton.api.json_values import UNREADABLE
from pelton.api.requests import FindMessages
from pelton.connect import Jet
from pelton.observe.summaries import DeadLetterPage, ErrorGroup, ErrorGroups, JobPage, JobSelection
from pelton.queue import DeadLetter, JobInfo, JobState, Outcome
from pelton.queue.model.naming import QueueNames, encode_key
from pelton.queue.model.records import CAUSES_OF
from pelton.queue.model.states import ENDINGS, decode_outcome
from pelton.queue.queue import look_at_queue
from pelton.queue.registry import ALL_LISTED, UnderwayPart
from pelton.queue.views import JobViews, envelope_of, job_of_outcome
from pelton.runtime import Deadline

if TYPE_CHECKING:
    from pelton.queue.registry import QueueContext

_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_WINDOW: Final = 64
_WIDEST: Final = 8192
_LARGE_BYTES: Final = 1 << 20
_AT_ONCE: Final = 64
_MOST_GROUPED: Final = 100_000
_LEAST_S: Final = 0.02
_LONGEST_S: Final = 10.0
_PATTERN_LENGTH: Final = 300
_ATTEMPTS: Final = re.compile(r" \(attempt \d+ of \d+\)$")
_NUMBERS: Final = re.compile(r"0[xX][0-9a-fA-F]+|\d+")


def error_pattern(error: str) -> str:
    """Return what errors of one kind have in common: the first line, ``#`` for each number, no attempt."""
    line = _ATTEMPTS.sub("", error.partition("\n")[0][: 2 * _PATTERN_LENGTH])
    return _NUMBERS.sub("#", line)[:_PATTERN_LENGTH]


async def list_jobs(
    jet: Jet,
    queue: str,
    wanted: JobSelection | None = None,
    *,
    oldest_first: bool = False,
    cursor: str = "",
    limit: int = 25,
    within: float = 0.25,
) -> JobPage:
    """Return a page of at most ``limit`` jobs that are ``wanted``: of one state, or all that have not ended.

    The newest first, or the oldest. Those that wait for another attempt (retrying) are in the order in which they are
    due, those that run in the order in which their attempts began; ``oldest_first`` turns these round. It looks for
    about ``within`` seconds; ``cursor`` is the one of the page before. Raises QueueNotFoundError, ConfigError.
    """
    selection = wanted or JobSelection()
    # Of a state alone, mostly all are wanted: of one more than the page has, it is told that there is another page.
    at_once = min(limit + 1, _AT_ONCE) if selection == JobSelection(state=selection.state) else _AT_ONCE
    lists = _JobLists(jet, await look_at_queue(jet, QueueNames(queue)), selection, oldest_first, at_once)
    deadline = Deadline(jet.runtime.clock, within)
    found, at, looked_at = await _read_page(await lists.chunk_of(), cursor, limit, deadline)
    return JobPage(queue=queue, jobs=tuple(found), cursor=at, looked_at=looked_at)


async def list_dead_letters(
    jet: Jet,
    queue: str,
    wanted: JobSelection | None = None,
    *,
    oldest_first: bool = False,
    cursor: str = "",
    limit: int = 25,
    within: float = 0.25,
) -> DeadLetterPage:
    """Return a page of at most ``limit`` dead letters that are ``wanted``, the newest first, or ``oldest_first``.

    It looks for about ``within`` seconds; ``cursor`` is the one of the page before. Raises QueueNotFoundError,
    ConfigError.
    """
    names, selection = QueueNames(queue), wanted or JobSelection()
    await look_at_queue(jet, names)
    messages = _Messages(jet, names.dead, (">",), _texts(selection, selection.error), oldest_first)
    found, at, looked_at = await _read_page(
        lambda place, deadline: _letters(messages, selection, place, deadline),
        cursor, limit, Deadline(jet.runtime.clock, within),
    )  # fmt: skip
    return DeadLetterPage(queue=queue, letters=tuple(found), cursor=at, looked_at=looked_at)


async def group_dead_letters(
    jet: Jet, queue: str, wanted: JobSelection | None = None, *, limit: int = 10, within: float = 0.25
) -> ErrorGroups:
    """Return the dead letters that are ``wanted`` by kinds of errors: the ``limit`` groups with the most of them.

    It looks for about ``within`` seconds, from the newest on. Raises QueueNotFoundError, ConfigError.
    """
    page = await list_dead_letters(jet, queue, wanted, limit=_MOST_GROUPED, within=within)
    groups: dict[str, list[Outcome]] = {}
    for letter in page.letters:
        groups.setdefault(error_pattern(letter.outcome.error), []).append(letter.outcome)
    most = sorted(groups.items(), key=lambda entry: -len(entry[1]))[:limit]
    return ErrorGroups(
        queue=queue,
        groups=tuple(
            ErrorGroup(error=error, job=ones[0].job, number=len(ones), last_id=ones[0].id, last_at=ones[0].finished_at)
            for error, ones in most
        ),
        looked_at=page.looked_at,
        is_whole=not page.cursor,
    )


T = TypeVar("T")
Chunk = tuple[list[tuple[str, T | None]], str]
"""Entries, each with the cursor of what follows it, None for one that is not wanted; and where to go on, if at all."""


async def _read_page(
    chunk: Callable[[str, Deadline], Awaitable[Chunk[T]]], cursor: str, limit: int, deadline: Deadline
) -> tuple[list[T], str, int]:
    """Return what a page has, the cursor of the next one, and how many were looked at."""
    found: list[T] = []
    at, last, looked_at = cursor, "", 0
    while True:
        entries, at = await chunk(at, deadline)
        for place, entry in entries:
            if entry is None:
                looked_at += 1
                continue
            if len(found) == limit:
                # There is another one, so another page.
                return found, last, looked_at
            looked_at += 1
            found.append(entry)
            last = place
        if not at or deadline.is_over:
            return found, at, looked_at


def _is_error(wanted: str, error: str) -> bool:
    return not wanted or wanted in error or wanted in error_pattern(error)


def _texts(wanted: JobSelection, error: str = "") -> tuple[str, ...]:
    """Return texts of which the messages of what is wanted contain one; none if any may be."""
    if part := max(error.split("#"), key=len):
        return (_in_json(part),)
    for name in ("key", "tenant"):
        if text := getattr(wanted, name):
            return (f'"{name}":"{_in_json(text)}"',)
    # Jobs of flows are stored under another name.
    return tuple(f'"job":"{prefix}{_in_json(wanted.job)}"' for prefix in ("", "flow:")) if wanted.job else ()


def _in_json(text: str) -> str:
    return msgspec.json.encode(text)[1:-1].decode()


def _place(cursor: str) -> int:
    is_place = cursor.isascii() and cursor.isdecimal() and len(cursor) < 20 and int(cursor) < 1 << 63
    if cursor and not is_place:
        raise ConfigError(f"{cursor[:40]!r} is no cursor of a page of this list")
    return int(cursor or 0)


class _Messages:
    """The messages of a stream that match filters and contain one of some texts, from either end."""

    def __init__(
        self,
        jet: Jet,
        stream: str,
        filters: tuple[str, ...],
        contains: tuple[str, ...],
        oldest_first: bool,
        untaken: bool = False,
    ) -> None:
        self._jet = jet
        self._request = FindMessages(stream=stream, filters=filters, contains=contains, untaken=untaken)
        self.oldest_first = oldest_first
        self._width = _WINDOW

    async def behind(self, place: int, deadline: Deadline) -> tuple[dict[int, StoredMessage | None], int]:
        """Return messages behind a place, and up to where these are all; 0 at the end."""
        if self.oldest_first:
            left = max(deadline.left or 0.0, _LEAST_S)
            request = replace(self._request, begin=place + 1, limit=_AT_ONCE, within=left)
            reply = await self._jet.backend.call(request)
            return {stored.seq: stored for stored in reply.messages}, max(reply.next_begin - 1, 0)
        try:
            state = (await self._jet.backend.call(StreamInfoRequest(name=self._request.stream))).state
        except StreamNotFoundError:
            # An older version made the queue.
            return {}, 0
        end = min(place or state.last_seq + 1, state.last_seq + 1)
        begin = max(end - self._width, state.first_seq, 1)
        if begin >= end:
            return {}, 0
        request = replace(self._request, begin=begin, upto=end - 1, limit=self._width, within=_LONGEST_S)
        reply = await self._jet.backend.call(request)
        if sum(len(stored.data) for stored in reply.messages) < _LARGE_BYTES:
            # To open a snapshot costs as much as to read some hundred messages.
            self._width = min(self._width * 4, _WIDEST)
        return {stored.seq: stored for stored in reply.messages}, begin if begin > max(state.first_seq, 1) else 0


async def _letters(messages: _Messages, wanted: JobSelection, cursor: str, deadline: Deadline) -> Chunk[DeadLetter]:
    found, edge = await messages.behind(_place(cursor), deadline)
    entries: list[tuple[str, DeadLetter | None]] = []
    for seq, stored in sorted(found.items(), reverse=not messages.oldest_first):
        letter = None
        with suppress(*UNREADABLE):
            assert stored is not None, "messages are read"
            letter = _dead(stored.data)
        entries.append((str(seq), letter if letter is not None and _has_letter(wanted, letter) else None))
    return entries, str(edge) if edge else ""


def _has_letter(wanted: JobSelection, letter: DeadLetter) -> bool:
    outcome = letter.outcome
    is_selected = wanted.has(outcome.job, outcome.key, letter.envelope.tenant) and wanted.is_at(outcome.finished_at)
    return is_selected and _is_error(wanted.error, outcome.error)


class _JobLists:
    """The lists of one queue's jobs."""

    def __init__(self, jet: Jet, context: QueueContext, wanted: JobSelection, oldest_first: bool, at_once: int) -> None:
        self._jet = jet
        self._context = context
        self._views = JobViews(context)
        self._names = context.names
        self._wanted = wanted
        self._oldest_first = oldest_first
        self._at_once = at_once
        self._sources: list[_Messages | _Deliveries] = []

    async def chunk_of(self) -> Callable[[str, Deadline], Awaitable[Chunk[JobInfo]]]:
        state, names = self._wanted.state, self._names
        if state == "running":
            return self._running
        if state in ENDINGS:
            filters = (names.ending_subject(state, "*"),)
            self._sources = [
                _Messages(
                    self._jet, names.history, filters, _texts(self._wanted, self._wanted.error), self._oldest_first
                )
            ]
            return self._ended_jobs
        lists_all = await self._context.stats.unlisted() is ALL_LISTED
        if state == "retrying" and lists_all:
            return self._by_due
        self._sources = self._sources_of(state, lists_all)
        return self._merge

    def _sources_of(self, state: JobState | Literal[""], lists_all: bool) -> list[_Messages | _Deliveries]:
        """Return where the jobs of a state are, none of them in two places; and maybe jobs of others."""
        names, now = self._names, self._jet.runtime.clock.now()
        parts: list[UnderwayPart] = []
        filters: tuple[str, ...] = (*names.due_jobs, names.scheduled)
        if state in CAUSES_OF and lists_all:
            parts.append(UnderwayPart(causes=CAUSES_OF[state], due_after=0 if state == "stuck" else now))
            filters = {"pending": names.due_jobs, "scheduled": (names.scheduled,)}.get(state, ())
        if state == "pending" and lists_all:
            parts.append(UnderwayPart(causes=(0, 1 << 62), due_upto=now))
        if state in ("pending", "held") and lists_all:
            parts.append(UnderwayPart(causes=(-1, -1)))
        texts = _texts(self._wanted)
        if self._wanted.key and self._context.exclusive and filters:
            # What is no valid job has its key in its subject alone.
            filters, texts = names.jobs_of_key(encode_key(self._wanted.key)), _texts(replace(self._wanted, key=""))
        found: list[_Messages | _Deliveries] = [
            _Deliveries(self._context, part._replace(descending=not self._oldest_first, limit=self._at_once))
            for part in parts
        ]
        if filters:
            untaken = state == "pending" and lists_all
            messages = _Messages(self._jet, names.jobs, filters, texts, self._oldest_first, untaken=untaken)
            found.append(messages)
        return found

    async def _merge(self, cursor: str, deadline: Deadline) -> Chunk[JobInfo]:
        found: dict[int, StoredMessage | None] = {}
        edges = list[int]()
        for source in self._sources:
            some, edge = await source.behind(_place(cursor), deadline)
            found |= {seq: found.get(seq) or stored for seq, stored in some.items()}
            edges += [edge] if edge else []
        # Beyond where one of them ended, others may be missing.
        edge = (min if self._oldest_first else max)(edges, default=0)
        within = [seq for seq in found if not edge or (seq <= edge if self._oldest_first else seq >= edge)]
        order = sorted(within, reverse=not self._oldest_first)
        return await self._infos([(str(seq), seq) for seq in order], found), str(edge) if edge else ""

    async def _infos(
        self, places: Sequence[tuple[str, int]], known: Mapping[int, StoredMessage | None]
    ) -> list[tuple[str, JobInfo | None]]:
        """Return the jobs at some sequences, each with its place; None for those that are not wanted."""
        jobs = await self._jet.stream(self._names.jobs)
        messages: dict[int, StoredMessage] = {}
        for _, seq in places:
            with suppress(MessageNotFoundError):
                stored = known.get(seq) or await jobs.get_message(seq)
                if self._is_selected(stored):
                    messages[seq] = stored
        infos = dict(zip(messages, await self._views.infos_of(list(messages.values())), strict=True))
        return [(place, self._if_selected(infos.get(seq))) for place, seq in places]

    def _is_selected(self, stored: StoredMessage) -> bool:
        if not self._names.is_job(stored.subject) or not self._wanted.is_at(stored.time_ns):
            return False
        job = envelope_of(self._names, stored)
        return self._wanted.has(job.job, job.key, job.tenant)

    def _if_selected(self, info: JobInfo | None) -> JobInfo | None:
        if info is None or not _is_error(self._wanted.error, info.last_error):
            return None
        return info if self._wanted.state in ("", info.state) else None

    async def _running(self, cursor: str, deadline: Deadline) -> Chunk[JobInfo]:
        begin, running = _place(cursor), await self._views.running()
        if self._oldest_first:
            running.reverse()
        end = begin + self._at_once
        some = running[begin:end]
        places = [(str(begin + number), seq) for number, seq in enumerate(some, 1)]
        return await self._infos(places, {}), str(end) if end < len(running) else ""

    async def _by_due(self, cursor: str, deadline: Deadline) -> Chunk[JobInfo]:
        due, _, seq = cursor.partition("-")
        after = (_place(due), _place(seq)) if cursor else None
        part = UnderwayPart(
            causes=CAUSES_OF["retrying"], due_after=self._jet.runtime.clock.now(), by_due=True,
            descending=self._oldest_first, after=after, limit=self._at_once,
        )  # fmt: skip
        some = [(f"{one.due}-{one.seq}", one.seq) for one in await self._context.stats.select(part)]
        return await self._infos(some, {}), some[-1][0] if len(some) == self._at_once else ""

    async def _ended_jobs(self, cursor: str, deadline: Deadline) -> Chunk[JobInfo]:
        found, edge = await self._sources[0].behind(_place(cursor), deadline)
        entries: list[tuple[str, JobInfo | None]] = []
        for seq, stored in sorted(found.items(), reverse=not self._oldest_first):
            info = None
            with suppress(*UNREADABLE):
                assert stored is not None, "messages are read"
                outcome = decode_outcome(stored.data)
                if self._wanted.has(outcome.job, outcome.key, "") and self._wanted.is_at(outcome.finished_at):
                    info = self._if_selected(job_of_outcome(outcome))
            entries.append((str(seq), info))
        return entries, str(edge) if edge else ""


class _Deliveries:
    """Jobs that were taken, by their sequences."""

    def __init__(self, context: QueueContext, part: UnderwayPart) -> None:
        self._stats = context.stats
        self._part = part

    async def behind(self, place: int, deadline: Deadline) -> tuple[dict[int, StoredMessage | None], int]:
        """Return the sequences of jobs behind a place, and up to where these are all; 0 at the end."""
        rows = await self._stats.select(self._part._replace(after=(0, place) if place else None))
        return dict.fromkeys(one.seq for one in rows), rows[-1].seq if len(rows) == self._part.limit else 0
