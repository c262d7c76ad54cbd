"""SIGKILL while batches are stored: each is stored completely or not at all, and all acknowledged ones are stored."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.engine.salvage import recount
from tests.crash.test_kill import killed
from tests.storage.processes import Child

_WRITERS = 4


async def batcher(pipe: Connection, path: Path, who: str, seed: int) -> None:
    """Publish batches forever, in one call or in parts; report the name of each after its acknowledgement."""
    random = Random(seed)
    async with pelton.open(path) as jet:
        pipe.send("open")
        number = 0
        while True:
            number += 1
            name, size = f"{who}-{number}", random.choice((1, 3, 40, 400))
            data = f"{name} {size}".encode()
            if random.random() < 0.7:
                await jet.publish_atomic([(f"s.{random.randrange(5)}", data) for _ in range(size)])
            else:
                await _in_parts(jet, name, size, data)
            pipe.send(name)


async def _in_parts(jet: pelton.Jet, name: str, size: int, data: bytes) -> None:
    named = [{"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(seq)} for seq in range(1, size + 1)]
    named[-1]["Nats-Batch-Commit"] = "1"
    await jet.publish_batch([("s.0", data, headers) for headers in named])


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short"), pytest.param(8, id="long")])
async def test_batches_survive_kills_as_a_whole(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.*"], allow_atomic=True)
    random, acked = Random(20251121), set[object]()
    for number in range(rounds):
        with ExitStack() as stack:
            children = [
                stack.enter_context(Child(batcher, path, f"r{number}p{n}", random.randrange(1 << 30)))
                for n in range(_WRITERS)
            ]
            for child in children:
                acked.update(killed(child, random, 25))
        assert recount(str(path)) == []
    async with pelton.open(path) as jet:
        found = await _stored(jet)
    sizes = {name: int(size) for name, size in (text.split() for text in found)}
    assert {f"{name} {size}": size for name, size in sizes.items()} == found
    assert acked <= sizes.keys()
    assert len(acked) > 5 * rounds


async def _stored(jet: pelton.Jet) -> dict[str, int]:
    """Return the number of messages of each batch."""
    consumer = await (await jet.stream("s")).create_consumer(ack_policy="none")
    found: Counter[str] = Counter()
    while messages := await consumer.fetch(1000, no_wait=True):
        found.update(message.data.decode() for message in messages)
    return dict(found)
