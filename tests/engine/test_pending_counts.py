"""What a consumer has yet to deliver is counted by subjects if there is much of it, and the same either way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import pelton
from pelton.consumers import log


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("seed", range(6))
async def test_both_ways_of_counting_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str, seed: int
) -> None:
    draw = random.Random(seed)
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        stream = await jet.create_stream("orders", subjects=["orders.>"], retention=retention)
        consumer = await stream.create_consumer(
            durable_name="packer", filter_subjects=["orders.a.>", "orders.b"], max_ack_pending=-1
        )
        for _ in range(12):
            subjects = [draw.choice(["orders.a.x", "orders.a.y", "orders.b", "orders.c"]) for _ in range(30)]
            await jet.publish_batch([(subject, b"") for subject in subjects])
            for message in await consumer.fetch(draw.randrange(1, 25)):
                if draw.random() < 0.8:
                    await message.ack()
            if draw.random() < 0.4:
                await stream.purge(filter=draw.choice(["orders.b", "orders.a.x"]), keep=draw.randrange(3))
            counts = []
            for many in (4, 1_000_000):
                monkeypatch.setattr(log, "_MANY", many)
                async with pelton.open(tmp_path / "shop.pelton", read_only=True) as look:
                    found = await (await look.stream("orders")).consumer("packer")
                    counts.append((await found.info()).num_pending)
            assert counts[0] == counts[1]
            assert (await consumer.info()).num_pending == counts[0]
        await jet.close()
    assert pelton.verify(tmp_path / "shop.pelton") == []
