"""Operations of every kind, each with the marks that it leaves in a store: all of them or none, however it ends.

A mark describes an effect of an operation: "msg a1" that a message of this name is stored, "gone work 17" that message
17 of a stream was removed. The cancellations and the full disks use the same operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

import pelton
from pelton.api import Outgoing
from tests.crash.roles import name_of, payload

_POOL: Final = 60
_FEW: Final = 8
_CHUNK: Final = 512


class Operation(NamedTuple):
    """One operation: what it is, its effects, and how it is done."""

    kind: str
    marks: frozenset[str]
    work: Callable[[], Awaitable[object]]


@dataclass
class Bench:
    """An open store with all that the operations use. ``size``: that of payloads, 0 for some; ``ttl``: of locks."""

    jet: pelton.Jet
    random: Random
    size: int = 0
    ttl: int = 30
    count: int = 0
    held: list[pelton.Message] = field(default_factory=list)
    """Deliveries to be settled by operations."""
    handed: set[tuple[int, int]] = field(default_factory=set)
    """All deliveries that anybody was handed: which message, for which time."""
    swept: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)

    async def make(self) -> None:
        """Make the streams, buckets and the queue of a new store."""
        await self.jet.create_stream("log", subjects=["log.*"], allow_atomic=True)
        await self.jet.create_stream("swept", subjects=["swept"])
        work = await self.jet.create_stream("work", subjects=["work"], retention="workqueue")
        await work.create_consumer(durable_name="worker", ack_wait=3600, max_ack_pending=10_000)
        await self.jet.create_bucket("keys", history=1)
        await self.jet.create_objects("objects")
        # A worker that is cancelled twice keeps its jobs until their lease is over.
        await self.jet.queue("jobs", lease=0.3)
        async with self.jet.transaction(timeout=20) as tx:
            await tx.sql("CREATE TABLE rows(name TEXT PRIMARY KEY, data BLOB)")
        await self.open()

    async def open(self) -> None:
        """Look up what was made."""
        self.log, self.work, self.sweep = [await self.jet.stream(name) for name in ("log", "work", "swept")]
        self.worker = await self.work.consumer("worker")
        self.bucket = await self.jet.bucket("keys")
        self.store = await self.jet.objects("objects")
        queue = await self.jet.queue("jobs")

        @queue.job(name="note")
        async def note(name: str) -> str:
            return name

        self.queue, self.job = queue, note
        self.lock = self.jet.lock("lock", ttl=self.ttl)
        self.semaphore = self.jet.semaphore("slots", slots=2, ttl=self.ttl)

    async def stock(self) -> None:
        """Ensure that there are deliveries, messages and keys for operations that use them up."""
        if len(self.held) < _POOL // 2:
            await self.jet.publish_batch([("work", payload(self.name())) for _ in range(_POOL)])
            self.take(await self.worker.fetch(_POOL, no_wait=True))
        while len(self.swept) < _POOL // 2:
            self.swept += [ack.seq for ack in await self.jet.publish_batch([("swept", b"x")] * _POOL)]
        while len(self.keys) < _FEW:
            name = self.name()
            await self.bucket.put(name, b"")
            self.keys.append(name)
        while len(self.objects) < _FEW:
            name = self.name()
            await self.store.put(name, self.data(name))
            self.objects.append(name)

    def take(self, messages: list[pelton.Message]) -> None:
        """Keep deliveries for operations to settle."""
        self.held += messages
        self.handed.update((message.delivered.seq, message.delivered.num_delivered) for message in messages)

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def data(self, name: str) -> bytes:
        """Return the payload of a message, which contains its name."""
        return payload(name) if not self.size else name.encode() + b"|" + bytes(self.size)

    def draw(self) -> Operation:
        """Return the next operation, of any kind."""
        return self.of(self.random.choice(list(KINDS)))

    def of(self, kind: str) -> Operation:
        marks, work = KINDS[kind](self, self.name())
        return Operation(kind, frozenset(marks), work)


Made = tuple[list[str], Callable[[], Awaitable[object]]]


def _messages(bench: Bench, name: str) -> tuple[list[str], list[tuple[str, bytes]]]:
    names = [f"{name}{letter}" for letter in "abc"]
    return [f"msg {one}" for one in names], [(f"log.{n}", bench.data(one)) for n, one in enumerate(names)]


def publish(bench: Bench, name: str) -> Made:
    return [f"msg {name}"], lambda: bench.jet.publish("log.1", bench.data(name))


def publish_batch(bench: Bench, name: str) -> Made:
    marks, messages = _messages(bench, name)
    return marks, lambda: bench.jet.publish_batch(messages)


def publish_atomic(bench: Bench, name: str) -> Made:
    marks, messages = _messages(bench, name)
    return marks, lambda: bench.jet.publish_atomic(messages)


def ack(bench: Bench, name: str) -> Made:
    message = bench.held.pop()
    return [_gone(message)], message.ack


def ack_many(bench: Bench, name: str) -> Made:
    messages = [bench.held.pop() for _ in range(3)]
    return [_gone(message) for message in messages], lambda: bench.worker.ack(messages)


def settle(bench: Bench, name: str) -> Made:
    message = bench.held.pop()
    d = message.delivered
    op = pelton.api.AckOp(seq=d.seq, consumer_seq=d.consumer_seq, token=d.token)
    outgoing = [Outgoing("log.2", bench.data(name))]
    return [f"msg {name}", _gone(message)], lambda: bench.jet.backend.settle(outgoing, d.stream, d.consumer, op)


def nak(bench: Bench, name: str) -> Made:
    return [], bench.held.pop().nak


def _gone(message: pelton.Message) -> str:
    return f"gone {message.delivered.stream} {message.delivered.seq}"


def transaction(bench: Bench, name: str) -> Made:
    message = bench.held.pop()
    marks, messages = _messages(bench, name)

    async def work() -> None:
        async with bench.jet.transaction(timeout=20) as tx:
            await tx.sql("INSERT INTO rows VALUES(?, ?)", (name, bench.data(name)))
            async with tx.savepoint():
                await tx.publish_batch(messages[:2])
            await tx.publish(*messages[2])
            await tx.bucket(bench.bucket).put(name, b"1")
            await tx.ack(message)

    return [f"row {name}", f"key {name}", _gone(message), *marks], work


def fetch(bench: Bench, name: str) -> Made:
    async def work() -> None:
        bench.take(await bench.worker.fetch(2, timeout=bench.random.choice((0, 0.01))))

    return [], work


def iterate(bench: Bench, name: str) -> Made:
    async def work() -> None:
        async with aclosing(bench.worker.messages(prefetch=4)) as messages:
            async with asyncio.timeout(0.005):
                async for message in messages:
                    bench.take([message])

    async def waited() -> None:
        with suppress(TimeoutError):
            await work()

    return [], waited


def listen(bench: Bench, name: str) -> Made:
    async def work() -> None:
        async with await bench.jet.subscribe("log.>") as listening:
            await listening.next(timeout=0.005)

    return [], work


def read(bench: Bench, name: str) -> Made:
    async def work() -> None:
        with suppress(pelton.MessageNotFoundError):
            name_of((await bench.work.get_next_message("work", 1)).data)
        await bench.worker.info()

    return [], work


def put(bench: Bench, name: str) -> Made:
    return [f"key {name}"], lambda: bench.bucket.put(name, bench.data(name))


def create(bench: Bench, name: str) -> Made:
    return [f"key {name}"], lambda: bench.bucket.create(name, bench.data(name))


def delete_key(bench: Bench, name: str) -> Made:
    key = bench.keys.pop()
    return [f"nokey {key}"], lambda: bench.bucket.delete(key)


def put_object(bench: Bench, name: str) -> Made:
    return [f"object {name}"], lambda: bench.store.put(name, bench.data(name), chunk_size=_CHUNK + bench.size // 4)


def delete_object(bench: Bench, name: str) -> Made:
    key = bench.objects.pop()
    return [f"noobject {key}"], lambda: bench.store.delete(key)


def enqueue(bench: Bench, name: str) -> Made:
    return [f"job {name}"], lambda: bench.job.enqueue(name + "/" + "x" * bench.size, key="")


def enqueue_many(bench: Bench, name: str) -> Made:
    names = [f"{name}{letter}" for letter in "abc"]
    jobs = [(one + "/" + "x" * bench.size,) for one in names]
    return [f"job {one}" for one in names], lambda: bench.job.enqueue_many(jobs)


def work_off(bench: Bench, name: str) -> Made:
    async def work() -> None:
        await bench.queue.work(concurrency=2, until_empty=True, handle_signals=False, grace=0.1)

    return [], work


def hold(bench: Bench, name: str) -> Made:
    async def work() -> None:
        async with bench.lock:
            await bench.jet.publish("log.3", bench.data(name))

    return [f"msg {name}"], work


def hold_slot(bench: Bench, name: str) -> Made:
    async def work() -> None:
        held = await bench.semaphore.acquire()
        try:
            await asyncio.sleep(0)
        finally:
            await held.release()

    return [], work


def lead(bench: Bench, name: str) -> Made:
    async def work() -> None:
        async with bench.jet.elect("election", ttl=bench.ttl):
            await asyncio.sleep(0)

    return [], work


def open_again(bench: Bench, name: str) -> Made:
    async def work() -> None:
        jet = bench.jet.backend.clone()
        try:
            await jet.publish("log.4", bench.data(name))
        finally:
            await jet.close()

    return [f"msg {name}"], work


def make_stream(bench: Bench, name: str) -> Made:
    return [f"stream {name}"], lambda: bench.jet.create_stream(name, subjects=[name])


def make_consumer(bench: Bench, name: str) -> Made:
    return [f"consumer {name}"], lambda: bench.log.create_consumer(durable_name=name)


def remove(bench: Bench, name: str) -> Made:
    seq = bench.swept.pop()
    return [f"gone swept {seq}"], lambda: bench.sweep.delete_message(seq)


def purge(bench: Bench, name: str) -> Made:
    bench.swept.sort(reverse=True)
    gone = [bench.swept.pop() for _ in range(3)]
    return [f"gone swept {seq}" for seq in gone], lambda: bench.sweep.purge(seq=gone[-1] + 1)


KINDS: Final[dict[str, Callable[[Bench, str], Made]]] = {
    one.__name__: one
    for one in (
        publish,
        publish_batch,
        publish_atomic,
        ack,
        ack_many,
        settle,
        nak,
        transaction,
        fetch,
        iterate,
        listen,
        read,
        put,
        create,
        delete_key,
        put_object,
        delete_object,
        enqueue,
        enqueue_many,
        work_off,
        hold,
        hold_slot,
        lead,
        open_again,
        make_stream,
        make_consumer,
        remove,
        purge,
    )
}
