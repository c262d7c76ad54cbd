"""SIGKILL at random points while a stream is fed to another store file: of feeders, and of users of either end.

Publishers fill a log in one file. Two feeders carry it to another one and take over from each other; there it is kept
in one stream, and processed in another. All are killed at points drawn from a seeded generator; rounds share the
stores. Every process records what it does, and the history is checked. ``--kills`` sets how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

import pelton
from pelton.api import AckOp
from pelton.engine.salvage import recount
from pelton.jet import Message
from tests.crash.roles import name_of, payload
from tests.crash.test_kill import killed
from tests.kit.deliveries import Ending, Promise, Step, check_deliveries
from tests.soak.record import Record, machine_ns, read
from tests.storage.processes import Child

_CHILDREN: Final = 5
_KEYS: Final = 4
_KEPT: Final = "log.kept."
_WORKED: Final = "log.work."


async def _make_stores(edge: Path, hub: Path) -> None:
    async with pelton.open(edge) as jet:
        await jet.create_stream("log", subjects=["log.>"])
    async with pelton.open(hub) as jet:
        await jet.create_stream("kept", subjects=[f"{_KEPT}*"])
        work = await jet.create_stream("work", subjects=[f"{_WORKED}*"], retention="workqueue")
        await work.create_consumer(durable_name="worker", ack_wait=0.3, max_ack_pending_per_subject=1)


# --- the processes


async def publisher(pipe: Connection, edge: Path, folder: Path, who: str, seed: int) -> None:
    """Publish forever, a few at a time; report how many after the acks."""
    random, record, count = Random(seed), Record(folder, who), 0
    async with pelton.open(edge) as jet:
        pipe.send("open")
        while True:
            names = [f"{who}-{count + n}" for n in range(random.choice((1, 1, 3, 20)))]
            count += len(names)
            subjects = [f"{random.choice((_KEPT, _WORKED))}{random.randrange(_KEYS)}" for _ in names]
            both = list(zip(subjects, names, strict=True))
            record.note(*(record.step("publishing", "log", subject=subject, name=name) for subject, name in both))
            acks = await jet.publish_batch([(subject, payload(name)) for subject, name in both])
            steps = zip(both, acks, strict=True)
            record.note(
                *(record.step("published", "log", subject=s, name=name, seq=ack.seq) for (s, name), ack in steps)
            )
            pipe.send(len(names))


async def feeder(pipe: Connection, edge: Path, hub: Path) -> None:
    """Feed forever, taking over again whenever another feeder took over; report before and after each step."""
    async with pelton.open(edge) as origin, pelton.open(hub) as target:
        origin.backend.ack = _telling(pipe, origin.backend.ack)  # type: ignore[method-assign]  # of this one store
        target.backend.publish_batch = _telling(pipe, target.backend.publish_batch)  # type: ignore[method-assign]
        pipe.send("open")
        while True:
            with suppress(pelton.AckRejectedError):
                await origin.feed("log", target)
            pipe.send("overtaken")


def _telling(pipe: Connection, method: Any) -> Any:
    async def told(*args: Any) -> Any:
        pipe.send("before")
        done = await method(*args)
        pipe.send("after")
        return done

    return told


async def worker(pipe: Connection, hub: Path, folder: Path, who: str, seed: int) -> None:
    """Process messages forever, with a report after each round."""
    random, record = Random(seed), Record(folder, who)
    async with pelton.open(hub) as jet:
        consumer = await (await jet.stream("work")).consumer("worker")
        pipe.send("open")
        while True:
            began = machine_ns()
            messages = await consumer.fetch(random.choice((1, 2, _KEYS)), timeout=0.5)
            await _work(jet, record, messages, began)
            pipe.send("worked")


async def _work(jet: pelton.Jet, record: Record, messages: Sequence[Message], began: int) -> None:
    for message in messages:
        delivered = message.delivered
        record.note(record.of("delivered", delivered, name=name_of(message.data), began=began))
        record.note(record.of("settling", delivered, how="ack"))
        op = AckOp(seq=delivered.seq, consumer_seq=delivered.consumer_seq)
        (refused,) = await jet.backend.ack("work", "worker", [op])
        record.note(record.of("refused" if refused else "settled", delivered, how="ack"))


# --- the test


async def test_what_is_fed_to_another_file_survives_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    edge, hub, folder = (tmp_path / name for name in ("edge.pelton", "hub.pelton", "steps"))
    folder.mkdir()
    await _make_stores(edge, hub)
    random, kills = Random(20251121), int(request.config.getoption("--kills"))
    for number in range(kills // _CHILDREN):
        _round(number, random, edge, hub, folder)
        assert recount(str(edge)) == recount(str(hub)) == []
    await _drain(edge, hub, folder)
    await _check(edge, hub, list(read(folder)))


def _round(number: int, random: Random, edge: Path, hub: Path, folder: Path) -> None:
    with ExitStack() as stack:

        def start(main: Any, *args: object) -> Child:
            return stack.enter_context(Child(main, *args))

        def seed() -> int:
            return random.randrange(1 << 30)

        doomed = [(start(publisher, edge, folder, f"r{number}p{n}", seed()), 30) for n in range(2)]
        doomed += [(start(feeder, edge, hub), 40) for _ in range(2)]
        doomed.append((start(worker, hub, folder, f"r{number}w", seed()), 30))
        assert len(doomed) == _CHILDREN
        random.shuffle(doomed)
        for child, most_words in doomed:
            killed(child, random, most_words)


async def _drain(edge: Path, hub: Path, folder: Path) -> None:
    """Carry and process what is left, under the same checks."""
    record = Record(folder, "last")
    async with pelton.open(edge) as origin, pelton.open(hub) as target:
        await origin.feed("log", target, until_empty=True)
        consumer = await (await target.stream("work")).consumer("worker")
        while (info := await consumer.info()).num_pending or info.num_ack_pending:
            began = machine_ns()
            await _work(target, record, await consumer.fetch(100, timeout=5), began)
            await asyncio.sleep(0)
    assert recount(str(edge)) == recount(str(hub)) == []


async def _check(edge: Path, hub: Path, steps: list[Step]) -> None:
    async with pelton.open(edge) as origin, pelton.open(hub) as target:
        sent = await _stored(origin, "log")
        kept = await _stored(target, "kept")
    assert list(kept.values()) == [one for one in sent.values() if one[0].startswith(_KEPT)]
    log = {seq: name for seq, (_, name) in sent.items()}
    promise = Promise(stream="work", consumer="worker", per_subject=1)
    ending = Ending(stored={"log": log, "work": {}}, settled_away={"work"})
    assert check_deliveries(steps, [promise], ending) == []
    came = _first_deliveries(steps)
    worked = [one for one in sent.values() if one[0].startswith(_WORKED)]
    for key in range(_KEYS):
        subject = f"{_WORKED}{key}"
        # Fed twice, a message would have two sequences; out of order, it would follow one that was stored later.
        assert [name for of, name in came if of == subject] == [name for of, name in worked if of == subject]
    assert min(len(kept), len(came)) > 30


def _first_deliveries(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """Return subject and name of the delivered messages, one entry per sequence, in the order of the sequences.

    A worker may have been killed between a delivery and its record of it; then the message was redelivered.
    """
    found = {step.seq: (step.subject, step.name) for step in steps if step.kind == "delivered"}
    return [found[seq] for seq in sorted(found)]


async def _stored(jet: pelton.Jet, stream: str) -> dict[int, tuple[str, str]]:
    """Return subject and name of every message of a stream, each read and checked, by sequence."""
    handle = await jet.update_stream(stream, allow_direct=True)
    found: dict[int, tuple[str, str]] = {}
    while messages := await handle.get_messages(seq=max(found, default=0) + 1):
        found |= {message.seq: (message.subject, name_of(message.data)) for message in messages}
    return found
