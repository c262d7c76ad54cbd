"""What one kombu connection does on the store's event loop, and how it tells the connection's thread.

**What one kombu connection does on the store. Everything here runs on the store's event loop.** A durable queue of
kombu is a queue of Pelton, and a message one of its jobs, so that leases, priorities, counts and dead letters are those
of every queue, and the command line and the dashboard show them. For each queue that a connection consumes, a task
takes jobs, as many as the channel's prefetch count allows, into the connection's inbox. The claims renew the leases of
all messages that were delivered and not acknowledged, for as long as this process lives; if it dies they are
redelivered when the lease is over. Acknowledgements are stored in groups.

What is sent to queues that live with their consumer (replies, events, broadcasts) is not stored: it is published to
whoever is subscribed, as on a broker that deletes such a queue with its connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

import msgspec

from pelton.api import BucketKeyNotFoundError, BucketNotFoundError, PeltonError, QueueNotFoundError
from pelton.api.errors import WrongLastSequenceError
from pelton.api.json_values import UNREADABLE
from pelton.connect import Jet
from pelton.contrib.process_store import token
from pelton.jet import Subscription
from pelton.queue import ClaimedJob, Claims, JobRules, Queue
from pelton.runtime import end_tasks


class Arrival(msgspec.Struct, frozen=True):
    """A message. ``exchange`` and ``routing_key`` are those of a broadcast; the rest is of a queue, with its job."""

    message: dict[str, Any]
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    claims: Claims | None = None
    job: ClaimedJob | None = None


class Inbox:
    """Filled on one thread, emptied on another. Raises what ended it, once."""

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque()
        self._error: Exception | None = None
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._arrivals)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something."""
        return self._readable

    def put(self, arrival: Arrival) -> None:
        """Add a message."""
        self._arrivals.append(arrival)
        self.signal()

    def fail(self, error: Exception) -> None:
        """Make the next call of `pop` raise an error."""
        self._error = error
        self.signal()

    def signal(self) -> None:
        """Make the descriptor readable."""
        # A full pipe is readable, too.
        with suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._writable, b"!")

    def clear_signal(self) -> None:
        """Make the descriptor unreadable; call it before the inbox is emptied."""
        with suppress(BlockingIOError):
            os.read(self._readable, 4096)

    def pop(self) -> Arrival | None:
        """Return the oldest message, or None."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._arrivals.popleft() if self._arrivals else None

    def take_all(self) -> list[Arrival]:
        """Return all messages that are left."""
        taken: list[Arrival] = []
        while self._arrivals:
            taken.append(self._arrivals.popleft())
        return taken

    def wait(self, timeout: float | None) -> None:
        """Wait until there may be a message, for ``timeout`` seconds at most (None: for ever)."""
        if not (self._arrivals or self._error):
            select.select([self._readable], [], [], timeout)
        self.clear_signal()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self._readable)
            os.close(self._writable)


# --- what kombu's queues and exchanges are called in the store. Pure

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
EXCHANGES: Final = "kombu_exchanges"
"""The bucket of the exchanges' bindings."""
# Pelton has four priorities, AMQP ten; both begin with the higher ones.
_RANKS: Final = (0, 0, 0, 1, 1, 2, 2, 2, 3, 3)
_JOB: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def queue_name(queue: str) -> str:
    """Return the name of the Pelton queue behind kombu's: the same, if it may be called so."""
    if _QUEUE.fullmatch(queue):
        return queue
    return f"{_UNFIT.sub('_', queue)[:55]}-{crc32(queue.encode()):08x}"


def exchange_subject(exchange: str) -> str:
    """Return the subject of what is published to an exchange, for queues that live with their consumer."""
    return f"kombu.exchange.{token(exchange)}"


def queue_subject(queue: str) -> str:
    """Return the subject of what is sent to a queue that lives with its consumer."""
    return f"kombu.queue.{token(queue)}"


def rank(priority: object) -> int:
    """Return Pelton's priority for kombu's, from 0 to 9; whatever else it is counts as 0."""
    return _RANKS[min(max(priority, 0), 9)] if isinstance(priority, int) else 0


def job_name(headers: object) -> str:
    """Return what a message's job is called: Celery's name of the task, if it has one."""
    task = headers.get("task") if isinstance(headers, dict) else None
    return task if isinstance(task, str) and _JOB.fullmatch(task) else "message"


_log: Final = logging.getLogger("pelton.contrib")
# The most that is taken at once, and that waits in the inbox of a channel without a prefetch count.
_BATCH: Final = 16
_PULL_S: Final = 600.0


class BrokerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the transport, from ``transport_options``; durations in seconds."""

    lease: float | None = None
    history_max_age: float | None = None
    max_attempts: int = 20
    num_replicas: int = 1


class ExchangeRecord(msgspec.Struct):
    """An exchange, and which durable queues are bound to it: routing key, pattern, and queue."""

    type: str = "direct"
    table: list[tuple[str, str | None, str]] = []


class _Arguments(msgspec.Struct):
    message: dict[str, Any]


class Credit:
    """How many messages a channel may have that it has not acknowledged; 0: any number."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._limit = 0
        self._outstanding = 0
        self._changed = asyncio.Event()

    def set_limit(self, limit: int) -> None:
        self._limit = limit
        self._changed.set()

    def add(self, number: int) -> None:
        """Count messages that were taken, or, if negative, settled."""
        self._outstanding += number
        self._changed.set()

    def note_emptied(self) -> None:
        self._changed.set()

    def free(self) -> int:
        """Return how many more may be taken now."""
        return self._limit - self._outstanding if self._limit else _BATCH - len(self._inbox)

    def surplus(self) -> int:
        """Return how many were taken too many."""
        return max(self._outstanding - self._limit, 0) if self._limit else 0

    async def wait(self) -> int:
        """Wait until some may be taken; return how many."""
        while (free := self.free()) <= 0:
            self._changed.clear()
            await self._changed.wait()
        return min(free, _BATCH)


class ClaimedQueue:
    """The jobs that a connection holds of one queue, and their ends that are still to be stored."""

    def __init__(self, queue: Queue, claims: Claims) -> None:
        self.queue = queue
        self.claims = claims
        self.ended: list[ClaimedJob] = []
        self.has_ended: asyncio.Event = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def settle(self) -> None:
        """Store the ends of jobs that were reported. Raises PeltonError."""
        ended, self.ended = self.ended, []
        if ended:
            await self.claims.settle(ended)


class Broker:
    """The queues, consumers and subscriptions of one connection."""

    def __init__(self, jet: Jet, options: BrokerOptions, inbox: Inbox) -> None:
        self._jet = jet
        self._options = options
        self._inbox = inbox
        self._queues: dict[str, Queue] = {}
        self._claimed: dict[tuple[str, bool], ClaimedQueue] = {}
        self._takers: dict[str, tuple[asyncio.Task[None], Credit]] = {}
        self._subscriptions: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._bucket: Any = None

    def credit(self) -> Credit:
        """Return the credit of a new channel."""
        return Credit(self._inbox)

    # --- queues

    async def declare(self, name: str) -> Queue:
        """Return a durable queue, created if it is new. Raises ConfigError."""
        found = self._queues.get(name)
        if found is None:
            options = self._options
            found = self._queues[name] = await self._jet.queue(
                queue_name(name),
                lease=options.lease,
                history_max_age=options.history_max_age,
                num_replicas=options.num_replicas if options.num_replicas > 1 else None,
            )
        return found

    async def exists(self, name: str) -> bool:
        """Whether there is a durable queue of this name."""
        if name not in self._queues:
            try:
                self._queues[name] = await self._jet.queue(queue_name(name), create=False)
            except QueueNotFoundError:
                return False
        return True

    async def put(self, name: str, message: dict[str, Any], text: bytes) -> None:
        """Store a message in a durable queue; ``text`` is the message as JSON."""
        queue = await self.declare(name)
        options = queue.options(priority=rank(message.get("properties", {}).get("priority")))
        await options.enqueue(job_name(message.get("headers")), message=msgspec.Raw(text))

    async def size(self, name: str) -> int:
        """Return how many messages are ready."""
        return (await (await self.declare(name)).counts()).pending if await self.exists(name) else 0

    async def purge(self, name: str) -> int:
        """Remove the messages that nobody holds; return how many."""
        return await (await self.declare(name)).purge() if await self.exists(name) else 0

    async def delete(self, name: str) -> None:
        """Remove a queue, its bindings too."""
        await self.cancel(name)
        if await self.exists(name):
            await self._queues.pop(name).delete(force=True)
            bucket = await self._exchanges()
            keys = bucket.keys()
            for key in [key async for key in keys]:
                await self._change(
                    key, lambda record: ExchangeRecord(record.type, [one for one in record.table if one[2] != name])
                )

    # --- messages of durable queues

    async def get(self, name: str) -> Arrival | None:
        """Take one message, if there is one."""
        claimed = await self._claims(name, is_get=True)
        for job in await claimed.claims.take(1):
            return _arrival(name, claimed.claims, job)
        return None

    async def consume(self, name: str, credit: Credit) -> None:
        """Take messages into the inbox from now on."""
        await self.cancel(name)
        claimed = await self._claims(name, is_get=False)
        taking = self._jet.runtime.spawn(self._take(name, claimed, credit), f"pelton kombu {name}")
        self._takers[name] = taking, credit

    async def cancel(self, name: str) -> None:
        """Take no more messages; those that no one has seen are handed back."""
        found = self._takers.pop(name, None)
        if found is None:
            return
        await end_tasks(found[0])
        claimed = self._claimed.get((name, False))
        if claimed is not None:
            with suppress(PeltonError):
                left = await claimed.claims.take(_BATCH)
                for job in left:
                    job.hand_back()
                await claimed.claims.settle(left)

    def end(self, arrivals: list[Arrival], report: Callable[[ClaimedJob], None], credit: Credit | None) -> None:
        """Report how messages ended; that is stored soon, with others'."""
        ended = [(arrival.queue, arrival.claims, arrival.job) for arrival in arrivals if arrival.job is not None]
        for name, claims, job in ended:
            report(job)
            for is_get in (False, True):
                claimed = self._claimed.get((name, is_get))
                if claimed is not None and claimed.claims is claims:
                    claimed.ended.append(job)
                    claimed.has_ended.set()
        if credit is not None:
            credit.add(-len(ended))

    async def _take(self, name: str, claimed: ClaimedQueue, credit: Credit) -> None:
        try:
            while True:
                jobs = await claimed.claims.take(await credit.wait(), timeout=_PULL_S)
                credit.add(len(jobs))
                # Another queue's messages were taken meanwhile: the surplus goes to a channel that has time.
                if surplus := min(credit.surplus(), len(jobs)):
                    jobs, left = jobs[:-surplus], jobs[-surplus:]
                    self.end([_arrival(name, claimed.claims, job) for job in left], ClaimedJob.hand_back, credit)
                for job in jobs:
                    self._inbox.put(_arrival(name, claimed.claims, job))
        except PeltonError as error:
            self._inbox.fail(error)

    async def _claims(self, name: str, *, is_get: bool) -> ClaimedQueue:
        found = self._claimed.get((name, is_get))
        if found is None:
            queue = await self.declare(name)
            claims = queue.claims(JobRules(max_attempts=self._options.max_attempts))
            await claims.__aenter__()
            found = self._claimed[(name, is_get)] = ClaimedQueue(queue, claims)
            found.task = self._jet.runtime.spawn(self._settle(found), f"pelton kombu {name} acks")
        return found

    async def _settle(self, claimed: ClaimedQueue) -> None:
        try:
            while True:
                await claimed.has_ended.wait()
                claimed.has_ended.clear()
                await claimed.settle()
        except PeltonError as error:
            self._inbox.fail(error)

    # --- exchanges

    async def exchange(self, name: str) -> ExchangeRecord | None:
        """Return the durable bindings of an exchange, None if it has none."""
        try:
            return (await (await self._exchanges()).get(token(name))).value  # type: ignore[no-any-return]  # only records are put there
        except BucketKeyNotFoundError:
            return None

    async def bind(self, exchange: str, kind: str, binding: tuple[str, str | None, str]) -> None:
        """Bind a durable queue to an exchange."""

        def bind(record: ExchangeRecord) -> ExchangeRecord:
            table = record.table if binding in record.table else [*record.table, binding]
            return ExchangeRecord(kind, table)

        await self._change(token(exchange), bind)

    async def unbind(self, exchange: str, binding: tuple[str, str | None, str]) -> None:
        await self._change(
            token(exchange), lambda record: ExchangeRecord(record.type, [one for one in record.table if one != binding])
        )

    async def _change(self, key: str, change: Callable[[ExchangeRecord], ExchangeRecord]) -> None:
        bucket = await self._exchanges()
        while True:
            try:
                entry = await bucket.get(key)
                before, revision = entry.value, entry.revision
            except BucketKeyNotFoundError:
                before, revision = ExchangeRecord(), 0
            after = change(before)
            if after == before:
                return
            with suppress(WrongLastSequenceError):
                await bucket.update(key, after, revision)
                return

    async def _exchanges(self) -> Any:
        if self._bucket is None:
            try:
                self._bucket = await self._jet.bucket(EXCHANGES, type=ExchangeRecord)
            except BucketNotFoundError:
                self._bucket = await self._jet.create_bucket(
                    EXCHANGES, type=ExchangeRecord, replicas=self._options.num_replicas
                )
        return self._bucket

    # --- what is not stored

    async def send(self, subject: str, data: bytes) -> bool:
        """Publish to all subscribers; return whether there may be one."""
        if not self._jet.backend.might_reach(subject):
            return False
        await self._jet.backend.send(subject, data)
        return True

    async def subscribe_exchange(self, exchange: str) -> None:
        """Put what is published to an exchange into the inbox."""

        def put(data: bytes) -> None:
            routing_key, message = msgspec.json.decode(data, type=tuple[str, dict[str, Any]])
            self._inbox.put(Arrival(message, exchange=exchange, routing_key=routing_key))

        await self._subscribe(exchange_subject(exchange), put)

    async def subscribe_queue(self, queue: str) -> None:
        """Put what is sent to a queue into the inbox."""
        await self._subscribe(
            queue_subject(queue), lambda data: self._inbox.put(Arrival(msgspec.json.decode(data), queue=queue))
        )

    async def unsubscribe_queue(self, queue: str) -> None:
        """End a subscription."""
        await self._unsubscribe(queue_subject(queue))

    async def _subscribe(self, subject: str, put: Callable[[bytes], None]) -> None:
        if subject not in self._subscriptions:
            subscription = await self._jet.subscribe(subject)
            task = self._jet.runtime.spawn(self._read(subscription, put), f"pelton kombu {subject}")
            self._subscriptions[subject] = subscription, task

    async def _read(self, subscription: Subscription, put: Callable[[bytes], None]) -> None:
        try:
            while (message := await subscription.next()) is not None:
                try:
                    put(message.data)
                except UNREADABLE:
                    _log.warning("a message under %r is none of kombu's", message.subject)
        except PeltonError as error:
            self._inbox.fail(error)

    async def _unsubscribe(self, subject: str) -> None:
        found = self._subscriptions.pop(subject, None)
        if found is not None:
            subscription, task = found
            await end_tasks(task)
            await subscription.close()

    async def close(self) -> None:
        """Store what was acknowledged, and hand back what was not."""
        for name in list(self._takers):
            await self.cancel(name)
        for subject in list(self._subscriptions):
            await self._unsubscribe(subject)
        for claimed in self._claimed.values():
            await end_tasks(claimed.task)
            try:
                await claimed.settle()
            finally:
                await claimed.claims.__aexit__(None, None, None)
        self._claimed.clear()


def _arrival(name: str, claims: Claims, job: ClaimedJob) -> Arrival:
    try:
        message = msgspec.json.decode(job.args, type=_Arguments).message
    except UNREADABLE:
        # A job that a program has enqueued by itself: its arguments are the body.
        body = job.args.decode()
        message = {"body": body, "headers": {}, "properties": {"delivery_info": {}, "body_encoding": "utf-8"}}
    return Arrival(message, queue=name, claims=claims, job=job)
