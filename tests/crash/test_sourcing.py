"""SIGKILL at random points while sources are carried: none lost, none carried twice, order per subject kept.

An inbox is mirrored, and feeds a work queue that holds one message per subject (the others wait). Publishers and
workers are killed at points drawn from a seeded generator; rounds share the store. ``--kills`` sets how often.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from time import monotonic_ns

import pytest

import pelton
from pelton.engine.salvage import recount
from tests.crash.roles import name_of, payload
from tests.crash.test_kill import killed
from tests.storage.processes import Child

_CHILDREN = 4
_KEYS = 5
_WORK = {
    "retention": "workqueue",
    "max_msgs_per_subject": 1,
    "discard": "new",
    "discard_new_per_subject": True,
    "sources": [{"name": "inbox"}],
}


async def _make_store(path: Path) -> None:
    async with pelton.open(path) as jet:
        await jet.create_stream("inbox", subjects=["in.*"])
        await jet.create_stream("copy", mirror={"name": "inbox"})
        work = await jet.create_stream("work", **_WORK)
        await work.create_consumer(durable_name="worker", ack_wait=0.3)


async def publisher(pipe: Connection, path: Path, who: str, seed: int) -> None:
    """Publish forever to random keys; report the name of each message after its ack."""
    random, done = Random(seed), 0
    async with pelton.open(path) as jet:
        pipe.send("open")
        while True:
            names = [f"{who}-{done + n}" for n in range(random.choice((1, 1, 3, 20)))]
            done += len(names)
            await jet.publish_batch([(f"in.{random.randrange(_KEYS)}", payload(name)) for name in names])
            for name in names:
                pipe.send(name)


async def worker(pipe: Connection, path: Path, seed: int) -> None:
    """Work forever; report ``("got", name, time)`` before an ack and ``("done", name, time)`` after it."""
    random = Random(seed)
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream("work")).consumer("worker")
        pipe.send("open")
        while True:
            for message in await consumer.fetch(random.choice((1, 2, _KEYS)), timeout=0.5):
                pipe.send(("got", name_of(message.data), monotonic_ns()))
                try:
                    await message.ack()
                except pelton.AckRejectedError:
                    continue
                pipe.send(("done", name_of(message.data), monotonic_ns()))


class Record:
    """The children's reports, over all rounds."""

    def __init__(self) -> None:
        self.published: set[str] = set()
        # When each was first delivered; all processes share one clock.
        self.got: dict[str, int] = {}
        self.done: set[str] = set()

    def publisher_said(self, words: list[str]) -> None:
        self.published.update(words)

    def worker_said(self, words: list[tuple[str, str, int]]) -> None:
        for word, name, time in words:
            if word == "got":
                self.got[name] = min(time, self.got.get(name, time))
            else:
                assert name not in self.done, f"{name} was done twice"
                self.done.add(name)


async def test_what_is_carried_on_survives_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "a.pelton"
    await _make_store(path)
    random, record = Random(20251121), Record()
    for number in range(int(request.config.getoption("--kills")) // _CHILDREN):
        with ExitStack() as stack:
            names = [f"r{number}p{n}" for n in range(2)]
            publishers = [stack.enter_context(Child(publisher, path, n, random.randrange(1 << 30))) for n in names]
            workers = [stack.enter_context(Child(worker, path, random.randrange(1 << 30))) for _ in range(2)]
            doomed = [(child, record.publisher_said, 60) for child in publishers]
            doomed += [(child, record.worker_said, 30) for child in workers]
            random.shuffle(doomed)
            for child, listen, most_words in doomed:
                listen(killed(child, random, most_words))
        assert recount(str(path)) == []
    assert min(len(record.published), len(record.done)) > 100
    await _drain(path, record)


async def _drain(path: Path, record: Record) -> None:
    """Process what is left, and check everything that was ever done."""
    async with pelton.open(path) as jet:
        inbox, copy, work = [await _stored(jet, name) for name in ("inbox", "copy", "work")]
        assert copy == inbox
        assert {name for name, _ in inbox.values()} >= record.published
        assert len({key for _, key in work.values()}) == len(work), "two messages of a subject at once"
        consumer = await (await jet.stream("work")).consumer("worker")
        while (await consumer.info()).num_pending or (await consumer.info()).num_ack_pending:
            for message in await consumer.fetch(_KEYS, timeout=5):
                name = name_of(message.data)
                assert name not in record.done, f"{name} comes again"
                record.got.setdefault(name, monotonic_ns())
                await message.ack()
            await asyncio.sleep(0)
        assert (await (await jet.stream("work")).info()).sources[0].lag == 0
    assert recount(str(path)) == []
    first = sorted(record.got, key=lambda name: record.got[name])
    for key in {key for _, key in inbox.values()}:
        sent = [name for name, of in inbox.values() if of == key]
        assert [name for name in first if name in set(sent)] == sent, f"the messages of {key} came in another order"


async def _stored(jet: pelton.Jet, stream: str) -> dict[int, tuple[str, str]]:
    """Return name and subject of every message of a stream, each read and checked, by sequence."""
    handle = await jet.stream(stream)
    state = (await handle.info(deleted_details=True)).state
    found = {}
    for seq in sorted({*range(max(state.first_seq, 1), state.last_seq + 1)} - {*state.deleted}):
        message = await handle.get_message(seq)
        found[seq] = (name_of(message.data), message.subject)
    assert len({name for name, _ in found.values()}) == len(found), "a message is stored twice"
    return found
