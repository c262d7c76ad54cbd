"""SIGKILL in and around transactions: row, messages and ack of each take effect together or not at all."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.api import AckRejectedError
from pelton.engine.salvage import recount
from tests.crash.test_kill import killed
from tests.storage.processes import Child

_WRITERS = 4
_OUT_OF_EACH = 3


async def processor(pipe: Connection, path: Path, seed: int) -> None:
    """Turn each incoming message into a row and outgoing messages, forever; report its number after that."""
    random = Random(seed)
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream("in")).consumer("c")
        pipe.send("open")
        while True:
            for message in await consumer.fetch(random.choice((1, 4)), timeout=0.2):
                with suppress(AckRejectedError):
                    await _process(jet, message, random)
                    pipe.send(int(message.data))
            # Others write in the meantime.
            await asyncio.gather(*(jet.publish("noise") for _ in range(random.randrange(3))))


async def _process(jet: pelton.Jet, message: pelton.Message, random: Random) -> None:
    number = message.data
    async with jet.transaction(timeout=20) as tx:
        with suppress(ZeroDivisionError):
            async with tx.savepoint():
                await tx.sql("INSERT INTO seen VALUES(-1)")
                await tx.publish("out.undone", number)
                raise ZeroDivisionError
        await tx.ack(message)
        if random.random() < 0.5:
            await tx.publish_batch([("out.x", number)] * _OUT_OF_EACH)
        else:
            for _ in range(_OUT_OF_EACH):
                await tx.publish("out.y", number)
        await tx.sql("INSERT INTO seen VALUES(?)", (int(number),))


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short"), pytest.param(8, id="long")])
async def test_transactions_survive_kills_as_a_whole(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("in", subjects=["in"], retention="workqueue")
        await stream.create_consumer(durable_name="c", ack_wait=0.3)
        await jet.create_stream("out", subjects=["out.*"])
        await jet.create_stream("noise")
        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE seen(number INTEGER PRIMARY KEY)")
    random, said, fed = Random(20251121), set[object](), 0
    for _ in range(rounds):
        async with pelton.open(path) as jet:
            await jet.publish_batch([("in", b"%d" % number) for number in range(fed, fed + 100)])
            fed += 100
        with ExitStack() as stack:
            children = [stack.enter_context(Child(processor, path, random.randrange(1 << 30))) for _ in range(_WRITERS)]
            for child in children:
                said.update(killed(child, random, 25))
        assert recount(str(path)) == []
        async with pelton.open(path) as jet:
            await _check(jet, fed, said)
    assert len(said) > 4 * rounds


async def _check(jet: pelton.Jet, fed: int, said: set[object]) -> None:
    """Check that each number is still in the work queue, or was seen, and went out, once."""
    async with jet.transaction() as tx:
        seen = {number for (number,) in await tx.sql("SELECT number FROM seen")}
        [(kept, went_out)] = await tx.sql(
            "SELECT (SELECT count(*) FROM m_1), (SELECT json_group_array(CAST(data AS TEXT)) FROM m_2)"
        )
    out = [int(number) for number in json.loads(went_out)]
    assert said <= seen
    assert sorted(out) == sorted([*seen] * _OUT_OF_EACH)
    assert kept == fed - len(seen)
