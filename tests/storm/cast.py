"""The processes of a storm: each reopens the store whenever its key was exchanged, and continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import pelton
from pelton.api import AckRejectedError, ConsumerNotFoundError, StoreKeyError
from tests.crash.roles import payload
from tests.journal import machine_ns
from tests.soak.cast import Actor, Publishing, PullSource
from tests.storm import plan
from tests.storm.notes import Notes
from tests.storm.plan import Place

Round = Callable[[pelton.Jet], Awaitable[None]]
_LOOPS = 2
_OUT_OF_EACH = 3


class Player(Actor):
    """An actor whose store may get another key at any time; the storm moves its clock, not the actor."""

    def __init__(self, pipe: Connection, place: Place, who: str, seed: int) -> None:
        super().__init__(pipe, place.folder, who, seed)
        self.place = place
        self.notes = Notes(place.folder, who)
        self.key: str | None = None

    def _step_clock(self) -> None:
        """Do nothing: the storm lets it jump."""

    async def play(self, *rounds: Round) -> None:
        """Repeat each of the rounds until told to stop."""
        self.pipe.send("open")
        while not self.stopped:
            try:
                async with self.place.open() as (jet, self.key), asyncio.TaskGroup() as tasks:
                    for one in rounds:
                        tasks.create_task(self._repeat(one, jet))
            except* StoreKeyError:
                self.pipe.send("openings with another key")
        self.pipe.send("closed")

    async def work(self, queue: pelton.Queue, concurrency: int, seconds: float) -> None:
        """Work for a queue for a while."""
        working = asyncio.ensure_future(queue.work(concurrency=concurrency, handle_signals=False, grace=1.0))
        try:
            await asyncio.wait([working], timeout=seconds)
            queue.stop()
            await working
        finally:
            working.cancel()
            await asyncio.wait([working])


async def publisher(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Publish to all streams: alone, side by side, in batches and atomic ones."""
    actor = Player(pipe, place, who, seed)
    await actor.play(Publishing(actor, plan.STREAMS))


async def worker(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Pull from the consumers that stay, and ack singly and in batches."""
    actor = Player(pipe, place, who, seed)
    await actor.play(*[PullSource(actor, plan.KEPT)] * _LOOPS)


async def heir(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Pull from the consumers that are deleted all the time, and recreate them."""
    actor = Player(pipe, place, who, seed)

    async def pull(jet: pelton.Jet) -> None:
        stream, name = key = actor.random.choice(list(plan.REMADE))
        try:
            consumer, began = await (await jet.stream(stream)).consumer(name), machine_ns()
            found = await consumer.fetch(actor.random.choice((1, 5)), timeout=actor.random.uniform(0, 0.2))
        except ConsumerNotFoundError:
            await (await jet.stream(stream)).create_consumer(**plan.REMADE[key])
            return
        taken = actor.took([message.delivered for message in found], began)
        # Some are deleted in the meantime.
        await asyncio.sleep(actor.random.uniform(0, 0.2))
        with suppress(ConsumerNotFoundError):
            await actor.answer(jet, taken, "explicit")

    await actor.play(*[pull] * _LOOPS)


class Undone(Exception):  # noqa: N818  # not an error: the block is meant to be undone
    """Ends a transaction that must leave nothing behind."""


async def clerk(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Turn orders into rows and messages, each in a transaction."""
    actor, count = Player(pipe, place, who, seed), 0

    async def process(jet: pelton.Jet) -> None:
        nonlocal count
        consumer, began = await (await jet.stream(plan.BILLS[0])).consumer(plan.BILLS[1]), machine_ns()
        found = await consumer.fetch(actor.random.choice((1, 4)), timeout=0.2)
        actor.took([message.delivered for message in found], began)
        for message in found:
            count += 1
            await _order(actor, jet, message, f"{who}-t{count}")

    await actor.play(process)


async def _order(actor: Player, jet: pelton.Jet, message: pelton.Message, name: str) -> None:
    record, notes, order = actor.record, actor.notes, message.delivered
    outgoing = [(f"log.{n}", f"{name}x{n}") for n in range(_OUT_OF_EACH)]
    record.note(*(record.step("publishing", "log", subject=s, name=n) for s, n in outgoing))
    record.note(record.of("settling", order, how="ack"))
    notes.say("begun", name=name)
    try:
        async with jet.transaction(timeout=actor.random.choice((0.3, 20))) as tx:
            await tx.sql("INSERT INTO ledger VALUES(?, ?)", (name, order.seq))
            acks = await tx.publish_batch([(s, payload(n)) for s, n in outgoing])
            await tx.ack(message)
            if actor.random.random() < 0.1:
                raise Undone
    except AckRejectedError:
        notes.say("undone", name=name)
        record.note(record.of("refused", order, how="ack"))
    except (Undone, pelton.TransactionTimeoutError):
        # All that is known of its ack is that it had no effect: another attempt may settle the order.
        notes.say("undone", name=name)
    except pelton.SqlConstraintError:
        notes.say("broken", name=f"order {order.seq} was delivered though a transaction had settled it: {name}")
    else:
        notes.say("kept", name=name)
        done = zip(outgoing, acks, strict=True)
        record.note(*(record.step("published", "log", subject=s, name=n, seq=ack.seq) for (s, n), ack in done))
        record.note(record.of("settled", order, how="ack"))
