"""What a worker knows of the keys, their records, and where it reads and writes these.

**The record of a key: who holds it, which of its jobs is next, and what is still to be carried out. Pure.** A key's
record is one message of one subject, replaced under the condition that it is still the one its writer has seen
(``Nats-Expected-Last-Subject-Sequence``): everything about a key changes in one place, in one order, and two workers
that decide on the same state cannot both succeed. The states, and what moves a key between them::

    absent   claim     -> held      a worker has the first job after ``done``; the record's sequence is its token
    free     claim     -> held
    waiting  claim     -> held      after its delay
    held     claim     -> held      by another worker, if the holder has not renewed it for a lease: a larger token
    held     renew     -> held      the same token
    held     settle    -> settled   the attempt is over: its messages (``outbox``) are decided, and not yet published
    settled  carry out -> free      the outbox is published, and the job, if it has ended, removed
    settled  carry out -> waiting   the job is retried after ``delay_ns``
    settled  refuse    -> held      a message of the outbox is refused: the attempt is not over

Settling is what counts: a holder that was replaced cannot settle, since the record has changed. From then on any
worker may carry it out, and repeating that is harmless. The server removes a free record after an hour, so that keys
leave nothing behind.

**What a worker knows of the keys, and when it can act on them. Pure: time is passed in.** Two watches feed it: the jobs
(one message per key that has any, then every new one), and the records of the keys. Its knowledge may be outdated;
every action is conditional on the record not having changed.

Keys that can be acted on stand in line (``model/turns.py``).

No wall clock is trusted: a held record may be taken over when this worker has seen it unchanged for a whole lease on
its own clock. Its holder counts from before it wrote the record, and gives up earlier.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from pelton.api import (
    AckOp,
    AckRejectedError,
    ApiError,
    Backend,
    MessageNotFoundError,
    MsgDelete,
    Outgoing,
    PeltonError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.tracing import as_first
from pelton.jet.registers import MovedError, Register, StoredRecord
from pelton.jet.stream import at_leader
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.records import CLAIMED
from pelton.queue.model.states import FOR_SIGNAL, Attempt
from pelton.queue.model.turns import KeyTurns
from pelton.runtime import Random

if TYPE_CHECKING:
    from pelton.queue.registry import Extender

HoldState = Literal["held", "settled", "waiting", "free"]
FREE_FOR_S: Final = 3600
_REFUSED_NS: Final = 1_000_000_000


class Posted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of an outbox."""

    subject: str
    data: bytes
    headers: bytes | None = None


class KeyRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a key.

    ``done``: the last job of the key that has ended; the next is the first one stored after it. ``job``: the current
    one, 0 if it was not looked up yet. ``tries`` counts its claims, ``token`` is the sequence of the last one (0 in
    that record itself), ``known`` is what its attempts left. ``name`` begins the message ids of the outbox, and is
    unique.
    """

    state: HoldState
    done: int = 0
    job: int = 0
    tries: int = 0
    token: int = 0
    worker: str = ""
    ended: bool = False
    delay_ns: int = 0
    known: Attempt | None = None
    name: str = ""
    outbox: tuple[Posted, ...] = ()

    @property
    def waits_for_signal(self) -> bool:
        """Whether its job was given back to wait for a signal."""
        put_off = None if self.known is None else self.known.put_off
        return not self.ended and put_off is not None and put_off.scope == FOR_SIGNAL


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(KeyRecord).decode


def claim_record(before: KeyRecord | None, worker: str) -> KeyRecord:
    if before is None or before.state == "free":
        return KeyRecord(state="held", done=before.done if before else 0, tries=1, worker=worker)
    return KeyRecord(
        state="held", done=before.done, job=before.job, tries=before.tries + 1, worker=worker, known=before.known
    )


def with_job(hold: KeyRecord, token: int, job: int) -> KeyRecord:
    """Return a claim with its token and the job that was found for it."""
    if hold.job not in (0, job):
        # The job that was tried was removed.
        hold = msgspec.structs.replace(hold, tries=1, known=None)
    return msgspec.structs.replace(hold, token=token, job=job)


def settled_record(
    hold: KeyRecord,
    name: str,
    outbox: tuple[Posted, ...],
    *,
    ended: bool,
    delay_ns: int = 0,
    known: Attempt | None = None,
) -> KeyRecord:
    """Return the record of an attempt that is over, with the messages to publish."""
    return msgspec.structs.replace(
        hold, state="settled", name=name, outbox=outbox, ended=ended, delay_ns=delay_ns, known=known or hold.known
    )


def taken_back(hold: KeyRecord) -> KeyRecord:
    """Return the record of an attempt that was settled but is not over after all."""
    return msgspec.structs.replace(hold, state="held", name="", outbox=(), ended=False, delay_ns=0)


def refused_record(hold: KeyRecord, error: str) -> KeyRecord:
    """Return the record of an attempt whose messages are refused and whose worker is gone: it has failed."""
    returned = hold.known.returned if hold.known is not None else 0
    known = Attempt(id=str(hold.job), attempt=hold.tries - returned, error=error, returned=returned)
    return settled_record(taken_back(hold), "", (), ended=False, delay_ns=_REFUSED_NS, known=known)


def carried_out(hold: KeyRecord) -> KeyRecord:
    """Return what follows a settled record once everything in it is published."""
    if hold.ended:
        return KeyRecord(state="free", done=hold.job)
    return msgspec.structs.replace(hold, state="waiting", name="", outbox=(), worker="", token=0)


def let_go(hold: KeyRecord) -> KeyRecord:
    """Return the record of a claimed key that has no job."""
    return KeyRecord(state="free", done=hold.done)


_IDLE_KEYS: Final = 65_536
_RESCUE_S: Final = 5.0


class Chance(NamedTuple):
    """A key on which this worker may be able to act: ``seq`` and ``hold`` are its record as far as it knows."""

    key: str
    seq: int
    hold: KeyRecord | None


class _Planned(NamedTuple):
    """When a key is to be looked at; the first is the earliest."""

    due: float
    key: str


class _Run(NamedTuple):
    """Jobs of a key that have one priority and follow each other: the last one."""

    priority: int
    last: int


class _Key:
    """What is known of a key. ``due``: when to act on it, ``is_ours``: whether this worker is acting on it.

    ``runs`` are its jobs in their order.
    """

    __slots__ = ("due", "hold", "is_ours", "last_job", "runs", "seq")

    def __init__(self) -> None:
        self.last_job = 0
        self.seq = 0
        self.hold: KeyRecord | None = None
        self.due = inf
        self.is_ours = False
        self.runs: tuple[_Run, ...] = ()

    @property
    def done(self) -> int:
        return self.hold.done if self.hold else 0

    @property
    def has_work(self) -> bool:
        return self.last_job > self.done

    @property
    def priority(self) -> int:
        """The priority of the key's next job."""
        return next((run.priority for run in self.runs if run.last > self.done), 0)

    def add(self, priority: int, seq: int) -> None:
        """Note a job; those that have ended are forgotten."""
        if seq <= self.last_job:
            return
        self.last_job = seq
        left = tuple(run for run in self.runs if run.last > self.done)
        if left and left[-1].priority == priority:
            left = left[:-1]
        self.runs = (*left, _Run(priority, seq))


class KeyTable:
    """The keys of a queue, as one worker sees them. ``lease`` in seconds, times in seconds since boot."""

    def __init__(self, lease: float, random: Random) -> None:
        self._lease = lease
        self.turns: KeyTurns = KeyTurns(random)
        self._keys: dict[str, _Key] = {}
        # Up to which job all are known; 0 while the first look is not over.
        self._known_upto = 0
        self._later: list[_Planned] = []
        self._idle: OrderedDict[str, None] = OrderedDict()

    def looks_at_jobs(self) -> None:
        """Begin a new scan. It sees only the last job of each subject, so earlier ones are unknown until it ends."""
        self._known_upto = 0

    def knows_jobs(self, upto: int) -> None:
        """Note that all jobs up to a sequence were seen, or were before the last one of their subject."""
        self._known_upto = max(upto, 1)

    def priorities(self, key: str, done: int) -> Sequence[int]:
        """Return the priorities of a key's jobs after ``done``, as far as they are known."""
        return sorted({run.priority for run in self._entry(key).runs if run.last > done})

    def is_known(self, seq: int) -> bool:
        """Whether all jobs up to a sequence are known."""
        return seq <= self._known_upto

    def saw_job(self, key: str, seq: int, now: float, priority: int = 0) -> bool:
        """Note that a job was stored; return whether there is something to do now."""
        entry = self._entry(key)
        entry.add(priority, seq)
        if self._known_upto:
            self._known_upto = max(self._known_upto, seq)
        if entry.hold is None or entry.hold.state == "free":
            self._plan(key, entry, now if entry.has_work else inf, now)
        return key in self.turns

    def saw_record(self, key: str, seq: int, hold: KeyRecord | None, now: float, age: float = 0.0) -> bool:
        """Note a key's record, ``age`` seconds after it was written; return whether there is something to do now.

        A record that is older than the known one is ignored.
        """
        entry = self._entry(key)
        if seq < entry.seq or (seq == entry.seq and hold is not None and entry.hold is not None):
            return False
        entry.seq, entry.hold = seq, hold
        self._plan(key, entry, self._due(entry, now, age), now)
        return key in self.turns

    def forget_record(self, key: str, now: float) -> None:
        entry = self._entry(key)
        entry.seq, entry.hold = 0, None
        self._plan(key, entry, now if entry.has_work else inf, now)

    def forget_jobs(self, key: str, last_job: int) -> None:
        """Forget the jobs of a key, unless one came after ``last_job``."""
        entry = self._entry(key)
        if entry.last_job == last_job:
            entry.last_job, entry.runs = 0, ()

    def last_job(self, key: str) -> int:
        return self._entry(key).last_job

    def take(self, limit: int, now: float) -> list[Chance]:
        """Return what can be done, reserved for the caller until :meth:`done`.

        Keys of a priority are chosen in rounds.
        """
        while self._later and self._later[0].due <= now:
            _, key = heapq.heappop(self._later)
            entry = self._keys.get(key)
            if entry is not None and entry.due <= now and not entry.is_ours:
                self.turns.join(key, entry.priority)
        found = []
        for key in self.turns.take(limit):
            entry = self._keys[key]
            entry.is_ours = True
            found.append(Chance(key, entry.seq, entry.hold))
        return found

    def release(self, key: str, now: float, again: float = 0.0, changed: int = 0) -> None:
        """Release a key to any worker.

        This one does not retry before ``again`` seconds unless the record changes, to ``changed`` if given, which may
        already be known.
        """
        entry = self._entry(key)
        entry.is_ours = False
        if changed and entry.seq >= changed:
            again = 0.0
        self._plan(key, entry, max(entry.due, now + again), now)

    def next_due(self) -> float:
        """Return when to check next, if nothing happens; infinity for never."""
        return self._later[0].due if self._later else inf

    def _entry(self, key: str) -> _Key:
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        return entry

    def _due(self, entry: _Key, now: float, age: float) -> float:
        hold = entry.hold
        if hold is None or hold.state == "free":
            return now if entry.has_work else inf
        if hold.state == "held":
            return now + self._lease
        if hold.state == "settled":
            return now + min(self._lease, _RESCUE_S)
        # A delay guarantees nothing about other workers: here the server's clock is good enough.
        return now + max(hold.delay_ns / 1e9 - age, 0.0)

    def _plan(self, key: str, entry: _Key, due: float, now: float) -> None:
        entry.due = due
        self._idle.pop(key, None)
        if due <= now and not entry.is_ours:
            self.turns.join(key, entry.priority)
            return
        self.turns.leave(key)
        if entry.is_ours:
            return
        if due < inf:
            heapq.heappush(self._later, _Planned(due, key))
        else:
            self._idle[key] = None
            if len(self._idle) > _IDLE_KEYS:
                oldest, _ = self._idle.popitem(last=False)
                del self._keys[oldest]


# --- the records, as they are stored

_DELETE_FAILED: Final = 10057


class Ledger(Register[KeyRecord]):
    """The records of a queue's keys. A key is the part of its jobs' subjects after the prefix."""

    def __init__(self, backend: Backend, names: QueueNames) -> None:
        super().__init__(
            backend,
            names.keys,
            names.hold_subject(""),
            encode,
            decode,
            lambda hold: FREE_FOR_S if hold.state == "free" else 0,
        )
        self._names = names

    async def carry_out(self, key: str, seq: int, hold: KeyRecord) -> StoredRecord[KeyRecord]:
        """Publish what a settled record holds, remove its job if it has ended, and return the record that follows.

        Safe to repeat, or to run twice at once. Raises ApiError if a message is refused for good; then the
        records of the queue itself are not written yet. Raises MovedError if another worker has done it.
        """
        ours, numbered = f"{self._names.root}.", [(f"{hold.name}.{n}", posted) for n, posted in enumerate(hold.outbox)]
        # What a job adds to its flow has to be there when the flow is told that the job has ended.
        emitted = [
            (name, posted)
            for name, posted in numbered
            if not posted.subject.startswith(ours) or self._names.is_flow_log(posted.subject)
        ]
        if emitted:
            await self._backend.publish_batch([with_id(name, posted) for name, posted in emitted])
        # A wait is last: what comes after it finds the others.
        waits = [one for one in numbered if one not in emitted and hold.waits_for_signal and one is numbered[-1]]
        await asyncio.gather(*(self._note(*one) for one in numbered if one not in emitted and one not in waits))
        need_not_wait = [not await self._begin_wait(*one) for one in waits]
        if hold.ended:
            # Last, so that a job is always stored somewhere.
            await self.remove_job(hold.job)
        after = carried_out(hold)
        if any(need_not_wait):
            after = msgspec.structs.replace(after, delay_ns=0)
        return StoredRecord(await self.write(key, after, seq), after)

    async def remove_job(self, job: int) -> None:
        """Remove a job's message, unless it is already gone."""
        try:
            await self._backend.call(MsgDelete(stream=self._names.jobs, seq=job, no_erase=True))
        except ApiError as error:
            is_gone = isinstance(error, MessageNotFoundError)
            has_failed = error.err_code == _DELETE_FAILED
            if not (is_gone or (has_failed and await at_leader(self._backend, self._names.jobs, seq=job) is None)):
                raise

    async def _begin_wait(self, name: str, posted: Posted) -> bool:
        """Publish the record of a wait for a signal; return False if there is one that was not received."""
        wait = with_id(name, posted)
        try:
            await self._backend.publish(wait.subject, wait.data, wait.headers)
        except WrongLastSequenceError:
            return False
        return True

    async def _note(self, name: str, posted: Posted) -> None:
        """Publish a record of the queue: one per job forever for outcomes, else the latest of its subject."""
        note = with_id(name, posted)
        if note.subject.startswith((self._names.attempt_subject(""), self._names.order_subject(""))):
            await self._backend.publish(note.subject, note.data, note.headers)
            return
        if note.subject.startswith(self._names.ending_prefix):
            note = as_first(note, self._names.outcomes_of("*"))
        elif headers.first(note.headers or b"", headers.EXPECTED_LAST_SUBJECT_SEQUENCE) is None:
            block = headers.with_value(note.headers, headers.EXPECTED_LAST_SUBJECT_SEQUENCE, "0")
            note = Outgoing(note.subject, note.data, block)
        try:
            await self._backend.publish(note.subject, note.data, note.headers)
        except WrongLastSequenceError:
            # Already stored: another worker is carrying this out as well, or has done so; or the job was cancelled.
            return


def with_id(name: str, posted: Posted) -> Outgoing:
    """Return a message with an id that is the same for every publisher, unless it already has one."""
    block = posted.headers
    if block is None:
        block = headers.encode({headers.MSG_ID: name})
    elif headers.first(block, headers.MSG_ID) is None:
        block = headers.with_value(block, headers.MSG_ID, name)
    return Outgoing(posted.subject, posted.data, block)


def outbox_of(messages: Sequence[Outgoing]) -> tuple[Posted, ...]:
    """Return messages in the form in which a record stores them."""
    return tuple(Posted(message.subject, message.data, message.headers) for message in messages)


# --- the keys a worker holds: renewed by its keeper's thread, settled by its event loop, each lost at most once

CHANNEL: Final = CLAIMED


class HeldKey:
    """A key that this worker holds. ``seq`` is its record's sequence, as far as this worker knows.

    ``is_settling``: its attempt is over, and no longer renewed. ``is_settled``: the settled record is stored.
    """

    __slots__ = ("hold", "is_settled", "is_settling", "key", "seq")

    def __init__(self, key: str, seq: int, hold: KeyRecord) -> None:
        self.key: str = key
        self.seq: int = seq
        self.hold: KeyRecord = hold
        self.is_settling: bool = False
        self.is_settled: bool = False


Holdings = dict[int, HeldKey]
"""The keys a worker holds, by token; read by two threads, changed by its event loop."""


def replaced_error(stream: str, job: int) -> AckRejectedError:
    return AckRejectedError(stream, CHANNEL, job, "its key was taken over by another worker, which runs the job again")


class HoldExtender:
    """Extends leases: on keys itself, on anything else through the store."""

    def __init__(self, backend: Backend, ledger: Ledger, holdings: Holdings) -> None:
        self._backend = backend
        self._ledger = ledger
        self._holdings = holdings

    def clone(self) -> Extender:
        """Return a copy for another thread; it shares the holdings."""
        backend = self._backend.clone()
        return HoldExtender(backend, self._ledger.over(backend), self._holdings)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend leases, all at once; raises StoreError if none of them can be extended."""
        if consumer != CHANNEL:
            return await self._backend.ack(stream, consumer, acks)
        return list(await asyncio.gather(*(self._renew(stream, ack) for ack in acks)))

    async def close(self) -> None:
        await self._backend.close()

    async def _renew(self, stream: str, ack: AckOp) -> PeltonError | None:
        held = self._holdings.get(ack.token)
        if held is None:
            return replaced_error(stream, ack.seq)
        while not held.is_settling:
            seen = held.seq
            try:
                held.seq = await self._ledger.write(held.key, held.hold, seen)
            except MovedError:
                if held.is_settling:
                    break
                seq, hold = await self._ledger.read(held.key)
                if hold is None or hold.token != held.hold.token or hold.state != "held":
                    return replaced_error(stream, ack.seq)
                held.seq = seq
            else:
                return None
        # Its attempt is over: the settler decides about it.
        return None
