"""Processes that hold something exclusively: a lock, a slot, a term, a key of a bucket, the jobs of a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

import pelton
from tests.crash.queue.worker import Log, register
from tests.journal import Journal, machine_ns
from tests.linear.worker import BUCKET, Client
from tests.linear.worker import Round as Asked
from tests.storm import plan
from tests.storm.cast import Player
from tests.storm.plan import Place

SLOTS: Final = 2
_TTL_S: Final = 1
_PATIENCE_S: Final = 4.0
_KEYS: Final = 6
_SECOND: Final = 10**9
_OPERATIONS: Final = 6


async def holder(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Hold a lock, a slot of a semaphore or the term of an election for a while, and start again."""
    actor = Player(pipe, place, who, seed)

    async def hold(jet: pelton.Jet) -> None:
        what = actor.random.choice(("lock", "lock", "semaphore", "election", "election"))
        block: pelton.Lock | pelton.Semaphore | pelton.Election
        if what == "lock":
            block = jet.lock("storm", ttl=_TTL_S)
        elif what == "semaphore":
            block = jet.semaphore("storm", slots=SLOTS, ttl=_TTL_S)
        else:
            block = jet.elect("storm", ttl=_TTL_S)
        try:
            async with asyncio.timeout(_PATIENCE_S), block as held:
                await _note(actor, what, held.token, lambda: held.is_held)
        except TimeoutError:
            pipe.send("waits in vain")
        except (pelton.LockLostError, pelton.TermLostError):
            pipe.send(f"{what}s lost")

    await actor.play(hold)


async def _note(actor: Player, what: str, token: int, is_held: Callable[[], bool]) -> None:
    for _ in range(actor.random.randrange(1, 60)):
        # Before the check: then the note is true however long we are paused between the two.
        now = machine_ns()
        if not is_held():
            return
        actor.notes.say("holds", what, number=token, at=now)
        await asyncio.sleep(0.005)


async def comparer(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Compare and set keys that all comparers use in the same second."""
    actor = Player(pipe, place, who, seed)
    journal = Journal(place.folder, who, "ops")

    async def compare(jet: pelton.Jet) -> None:
        bucket = await jet.bucket(BUCKET)
        # Its results are distinguished by name: a client that lost its store does not know the outcome of its last.
        asked = Asked(machine_ns() // _SECOND, actor.random.randrange(1 << 30), _OPERATIONS)
        await Client(bucket, f"{who}-{machine_ns()}", asked, journal.note).run()
        await asyncio.sleep(actor.random.uniform(0, 0.1))

    await actor.play(compare)


async def dispatcher(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Put jobs into the exclusive queue, one or several at a time."""
    actor, count = Player(pipe, place, who, seed), 0

    async def dispatch(jet: pelton.Jet) -> None:
        nonlocal count
        queue = await jet.queue(plan.QUEUE)
        job = register(queue, Log(str(place.folder / "jobs")))
        numbers = [count + n for n in range(actor.random.choice((1, 1, 4)))]
        count += len(numbers)
        keys = [f"key.{actor.random.randrange(_KEYS)}" for _ in numbers]
        actor.notes.say("enqueueing", number=len(numbers))
        handles = await job.enqueue_many([(number,) for number in numbers], keys=keys)
        names = " ".join(f"{handle.id}={key}" for handle, key in zip(handles, keys, strict=True))
        actor.notes.say("enqueued", name=names, number=len(numbers))
        await asyncio.sleep(actor.random.uniform(0, 0.3))

    await actor.play(dispatch)


async def mechanic(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Work for the exclusive queue, for a while at a time."""
    actor = Player(pipe, place, who, seed)

    async def work(jet: pelton.Jet) -> None:
        queue = await jet.queue(plan.QUEUE)
        register(queue, Log(str(place.folder / "jobs")))
        await actor.work(queue, 3, actor.random.uniform(0.2, 2.0))

    await actor.play(work)
