"""The processes of the crash tests: each reports every step to its test only after it was acknowledged."""

from __future__ import annotations

import asyncio
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pelton
from pelton.api import AckRejectedError, PubAck

STREAM, WORK = "log", "work"


def payload(name: str) -> bytes:
    """The payload of a message: from some bytes to several pages."""
    size = zlib.crc32(name.encode()) % 997 if name[-1] != "7" else 9000
    return name.encode() + b"|" + bytes(Random(name).randbytes(size))


def name_of(data: bytes) -> str:
    """The name that a payload was made for. Raises AssertionError if any of its bits differ."""
    name = data.partition(b"|")[0].decode()
    assert data == payload(name), f"the data of {name} is not what was published"
    return name


def subject_of(name: str) -> str:
    """The subject under which a message is published, by whomever and however often."""
    chance = zlib.crc32(name.encode())
    return f"{(STREAM, WORK)[chance % 2]}.{chance // 2 % 5}"


async def resender(pipe: Connection, path: Path, who: str, seed: int, first: int, limit: int = 1 << 30) -> None:
    """Publish the messages ``first`` to ``limit`` of ``who``, as one that was killed did before; report each ack.

    Those that were stored, but not reported, are duplicates.
    """
    random = Random(seed)
    async with pelton.open(path) as jet:
        pipe.send("open")
        while first < limit:
            names = [f"{who}-{first + n}" for n in range(min(random.choice((1, 1, 1, 5, 40)), limit - first))]
            first += len(names)
            subjects = [subject_of(name) for name in names]
            acks = await _publish(jet, random, subjects, names, ids=True)
            for subject, name, ack in zip(subjects, names, acks, strict=True):
                pipe.send((subject, name, ack.seq))


async def publisher(pipe: Connection, path: Path, who: str, seed: int, limit: int = 1 << 30) -> None:
    """Publish forever, alone, many at once and in batches; report ``(subject, name, seq)`` of each after its ack."""
    random = Random(seed)
    async with pelton.open(path) as jet:
        pipe.send("open")
        done = 0
        while done < limit:
            names = [f"{who}-{done + n}" for n in range(min(random.choice((1, 1, 1, 5, 40)), limit - done))]
            done += len(names)
            stream = random.choice((STREAM, WORK))
            subjects = [f"{stream}.{random.randrange(5)}" for _ in names]
            acks = await _publish(jet, random, subjects, names)
            for subject, name, ack in zip(subjects, names, acks, strict=True):
                assert not ack.duplicate
                pipe.send((subject, name, ack.seq))


async def _publish(
    jet: pelton.Jet, random: Random, subjects: list[str], names: list[str], *, ids: bool = False
) -> list[PubAck]:
    """``ids``: batches have message ids, too."""
    if random.random() < 0.5:
        return await jet.publish_batch(
            [(s, payload(n), {"Nats-Msg-Id": n} if ids else None) for s, n in zip(subjects, names, strict=True)]
        )
    calls = [jet.publish(s, payload(n), msg_id=n) for s, n in zip(subjects, names, strict=True)]
    return list(await asyncio.gather(*calls))


async def worker(pipe: Connection, path: Path, seed: int) -> None:
    """Take from the work queue until it is stopped and empty.

    Reports ``("got", seq, name)`` before an ack and ``("done", seq, name)`` after it.
    """
    random = Random(seed)
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream(WORK)).consumer("worker")
        pipe.send("open")
        messages = []
        while messages or not pipe.poll():
            messages = await consumer.fetch(random.choice((1, 3, 30)), timeout=0.5)
            for message in messages:
                pipe.send(("got", message.metadata.stream_seq, name_of(message.data)))
            for message in messages:
                try:
                    await message.ack()
                except AckRejectedError:
                    pipe.send(("late", message.metadata.stream_seq, name_of(message.data)))
                else:
                    pipe.send(("done", message.metadata.stream_seq, name_of(message.data)))
        pipe.send("closed")


async def make_store(path: Path, *, ack_wait: float = 30.0) -> None:
    async with pelton.open(path) as jet:
        await jet.create_stream(STREAM, subjects=[f"{STREAM}.*"])
        work = await jet.create_stream(WORK, subjects=[f"{WORK}.*"], retention="workqueue")
        await work.create_consumer(durable_name="worker", ack_wait=ack_wait, max_ack_pending=200)


async def stored(jet: pelton.Jet, stream: str) -> dict[str, int]:
    """Return every message of a stream, read one by one and checked: name to sequence."""
    handle = await jet.stream(stream)
    found: dict[str, int] = {}
    state = (await handle.info(deleted_details=True)).state
    for seq in sorted({*range(max(state.first_seq, 1), state.last_seq + 1)} - {*state.deleted}):
        name = name_of((await handle.get_message(seq)).data)
        assert name not in found, f"{name} is stored twice"
        found[name] = seq
    return found
