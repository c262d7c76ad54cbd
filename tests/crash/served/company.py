"""Clients of nats-py that share a server and go on whatever happens to it; each notes what it was told, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from tests.crash.roles import name_of, payload
from tests.journal import machine_ns
from tests.kit.deliveries import Step, StepKind

LOG, WORK, PUSHED, BUCKET = "log", "work", "crew", "bucket"
_SUBJECTS: Final = 5
_KEYS: Final = 4
# What a client is told when its server is gone, does not answer, or is not there yet.
_FAILURES: Final = (nats.errors.Error, nats.js.errors.Error, OSError)
T = TypeVar("T")


class Connection(Client):
    """A connection that remembers how those before it ended: with an end of file, or an error."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Exception] = []

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self.ends.append(e)
        await super()._process_op_err(e)


async def _ignore(error: Exception) -> None:
    """Errors are what these clients live with."""


async def _insist(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns in the end, however often it fails before."""
    while True:
        try:
            return await call()
        except (KeyNotFoundError, KeyWrongLastSequenceError):
            raise
        except _FAILURES:
            await asyncio.sleep(0.02)


class Company:
    """All clients of one server. ``steps`` is what they saw; ``broken``, what no server should do.

    ``seen`` is the sequences that the ordered consumer has got, in its order; ``stopped``, how many connections have
    ended with a server that was stopped. ``marks`` tells of each consumer, at times, how many deliveries
    there had been: when it was asked, and the number.
    """

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._random = url, Random(seed)
        self.steps: list[Step] = []
        self.broken: list[str] = []
        self.seen: list[int] = []
        self.stopped = 0
        self.marks: dict[str, list[tuple[int, int]]] = {WORK: [], PUSHED: []}
        self.connections: list[Connection] = []
        self._awaited = 0
        self._reached = asyncio.Event()
        self._publishing = True
        self._tasks: dict[str, list[asyncio.Task[None]]] = {"publishing": [], "consuming": []}

    async def begin(self) -> None:
        """Make what they work on, and let them work."""
        js = await self._connected()
        await js.add_stream(name=LOG, subjects=[f"{LOG}.*"])
        await js.add_stream(name=WORK, subjects=[f"{WORK}.*"], retention="workqueue")
        # Few are under way: hardly any waits at a client until it is delivered again.
        config = nats.js.api.ConsumerConfig(ack_wait=20, max_ack_pending=20)
        await js.add_consumer(WORK, config, durable_name=WORK)
        config = nats.js.api.ConsumerConfig(ack_wait=20, max_ack_pending=20, deliver_subject="to.crew")
        await js.add_consumer(LOG, config, durable_name=PUSHED, deliver_group=PUSHED)
        await js.create_key_value(bucket=BUCKET, history=5)
        for stream in (LOG, WORK):
            self._do("publishing", self._publish(await self._connected(), stream, f"{stream}-once", ids=True))
            self._do("publishing", self._publish(await self._connected(), stream, f"{stream}-plain", ids=False))
        self._do("publishing", self._keep(await self._connected()))
        for who in ("one", "two"):
            self._do("consuming", self._pull(await self._connected(), who))
            self._do("consuming", self._hear(await self._connected(), who))
        self._do("consuming", self._read(await self._connected()))
        self._do("consuming", self._count(await self._connected()))

    async def work(self, steps: int) -> None:
        """Wait until they have done so much more."""
        self._awaited = len(self.steps) + steps
        self._reached.clear()
        working = [task for tasks in self._tasks.values() for task in tasks]
        reached = asyncio.ensure_future(self._reached.wait())
        await asyncio.wait([reached, *working], return_when=asyncio.FIRST_COMPLETED)
        for task in working:
            if task.done():
                task.result()

    async def finish(self, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Publish no more, and consume what is left."""
        self._publishing = False
        await asyncio.gather(*self._tasks["publishing"])
        while not await _insist(is_done):
            await asyncio.sleep(0.1)
        for task in self._tasks["consuming"]:
            task.cancel()
        await asyncio.wait(self._tasks["consuming"])
        for connection in self.connections:
            await connection.close()

    async def disconnected(self) -> None:
        """Wait until all have noticed that the server is gone; some may not have been connected again."""
        while any(connection.is_connected for connection in self.connections):
            await asyncio.sleep(0.01)

    def _do(self, what: str, doing: Awaitable[None]) -> None:
        self._tasks[what].append(asyncio.ensure_future(doing))

    async def _connected(self) -> JetStreamContext:
        connection = Connection()
        await connection.connect(
            self._url, reconnect_time_wait=0.02, max_reconnect_attempts=-1, error_cb=_ignore, ping_interval=5
        )
        self.connections.append(connection)
        return connection.jetstream(timeout=2)

    def _note(self, kind: StepKind, who: str, stream: str, **fields: object) -> None:
        self.steps.append(Step(kind=kind, at=machine_ns(), who=who, stream=stream, **fields))  # type: ignore[arg-type]
        if len(self.steps) >= self._awaited:
            self._reached.set()

    async def _publish(self, js: JetStreamContext, stream: str, who: str, *, ids: bool) -> None:
        number = 0
        while self._publishing:
            names = [f"{who}-{number + n}" for n in range(self._random.choice((1, 1, 3, 10)))]
            number += len(names)
            await asyncio.gather(*(self._publish_one(js, stream, who, name, ids) for name in names))

    async def _publish_one(self, js: JetStreamContext, stream: str, who: str, name: str, ids: bool) -> None:
        """Until it is acknowledged, with an id; else once, and it may be lost if it is not."""
        subject = f"{stream}.{self._random.randrange(_SUBJECTS)}"
        headers = {"Nats-Msg-Id": name} if ids else None
        self._note("publishing", who, stream, subject=subject, name=name)
        publish = lambda: js.publish(subject, payload(name), headers=headers)  # noqa: E731  # once, or again and again
        with suppress(*_FAILURES):
            ack = await (_insist(publish) if ids else publish())
            self._note("published", who, stream, subject=subject, name=name, seq=ack.seq)

    async def _pull(self, js: JetStreamContext, who: str) -> None:
        subscription = await js.pull_subscribe_bind(WORK, WORK)
        while True:
            messages: Sequence[Msg] = ()
            with suppress(*_FAILURES):
                messages = await subscription.fetch(self._random.choice((1, 3, 10)), timeout=1)
            for message in messages:
                await self._settle(message, f"{WORK}-{who}", WORK, WORK)

    async def _hear(self, js: JetStreamContext, who: str) -> None:
        """One of those to whom a push consumer pushes."""
        subscription = await js.subscribe(f"{LOG}.*", queue=PUSHED, stream=LOG, manual_ack=True)
        async for message in subscription.messages:
            await self._settle(message, f"{PUSHED}-{who}", LOG, PUSHED)

    async def _settle(self, message: Msg, who: str, stream: str, consumer: str) -> None:
        found = message.metadata
        fields = {"consumer": consumer, "seq": found.sequence.stream, "dseq": found.sequence.consumer}
        fields |= {"n": found.num_delivered, "subject": message.subject}
        self._note("delivered", who, stream, name=name_of(message.data), **fields)
        self._note("settling", who, stream, how="ack", **fields)
        await _insist(message.ack_sync)
        self._note("settled", who, stream, how="ack", **fields)

    async def _count(self, js: JetStreamContext) -> None:
        while True:
            for stream, consumer in ((WORK, WORK), (LOG, PUSHED)):
                asked = machine_ns()
                with suppress(*_FAILURES):
                    info = await js.consumer_info(stream, consumer)
                    assert info.delivered is not None
                    self.marks[consumer].append((asked, info.delivered.consumer_seq))
            await asyncio.sleep(0.05)

    async def _read(self, js: JetStreamContext) -> None:
        """Read the log in order, as a consumer that is made again whenever it missed something."""
        subscription = await js.subscribe(f"{LOG}.*", stream=LOG, ordered_consumer=True, idle_heartbeat=0.5)
        async for message in subscription.messages:
            self.seen.append(message.metadata.sequence.stream)

    async def _keep(self, js: JetStreamContext) -> None:
        """Own the keys of a bucket: each holds what was last put there, whatever a try before that came to."""
        bucket = await js.key_value(BUCKET)
        number = 0
        while self._publishing:
            number += 1
            key, value = f"k{self._random.randrange(_KEYS)}", b"%d" % number
            revision = await _insist(lambda: bucket.put(key, value))  # noqa: B023  # called in this round
            await self._look(bucket, key, value, revision)
            if number % 3 == 0:
                await self._swap(bucket, key, b"%d swapped" % number)
            elif number % 5 == 0:
                await _insist(lambda: bucket.delete(key))  # noqa: B023
                await self._look(bucket, key, None, 0)

    async def _look(self, bucket: KeyValue, key: str, value: bytes | None, revision: int) -> None:
        try:
            entry = await _insist(lambda: bucket.get(key))
        except KeyNotFoundError:
            if value is not None:
                self.broken.append(f"{key} was {value!r}, and is not there")
        else:
            if entry.value != value or (entry.revision or 0) < revision:
                self.broken.append(f"{key} was {value!r} ({revision}), and is {entry.value!r} ({entry.revision})")

    async def _swap(self, bucket: KeyValue, key: str, value: bytes) -> None:
        """Replace the very revision that was read; a try that was not answered may have done so."""
        revision = (await _insist(lambda: bucket.get(key))).revision
        with suppress(KeyWrongLastSequenceError):
            await _insist(lambda: bucket.update(key, value, last=revision))
        await self._look(bucket, key, value, (revision or 0) + 1)
