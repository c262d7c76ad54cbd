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
            for many, shorter in ((4, 0), (4, 1), (1_000_000, 4)):
                monkeypatch.setattr(log, "_MANY", many)
                monkeypatch.setattr(log, "_SHORTER", shorter)
                async with pelton.open(tmp_path / "shop.pelton", read_only=True) as look:
                    found = await (await look.stream("orders")).consumer("packer")
                    counts.append((await found.info()).num_pending)
            assert len({*counts}) == 1
            assert (await consumer.info()).num_pending == counts[0]
        await jet.close()
    assert pelton.verify(tmp_path / "shop.pelton") == []


@pytest.mark.parametrize("seed", range(4))
async def test_the_ack_floor_is_that_of_the_rows_whoever_has_changed_them(tmp_path: Path, seed: int) -> None:
    """It is kept between two questions: own acks, those of another process, and a rollback make it anew."""
    draw, path = random.Random(seed), tmp_path / "shop.pelton"
    async with pelton.open(path) as one, pelton.open(path) as other, pelton.open(path, read_only=True) as look:
        await one.create_stream("orders", subjects=["orders.>"])
        await (await one.stream("orders")).create_consumer(durable_name="packer", ack_policy="explicit")
        handles = [await (await jet.stream("orders")).consumer("packer") for jet in (one, other, look)]
        held: list[pelton.Message] = []
        for _ in range(15):
            which = draw.randrange(2)
            jet, consumer = (one, other)[which], handles[which]
            await jet.publish_batch([("orders.a", b"")] * 3)
            held += await consumer.fetch(3, no_wait=True)
            draw.shuffle(held)
            if draw.random() < 0.3:
                await held.pop().nak()
            elif draw.random() < 0.5:
                transaction = one.transaction()
                await (await transaction.__aenter__()).ack(held[0])
                await transaction.__aexit__(RuntimeError, RuntimeError(), None)
            elif held:
                await held.pop().ack()
            infos = [await each.info() for each in handles]
            async with pelton.open(path, read_only=True) as fresh:
                infos.append(await (await (await fresh.stream("orders")).consumer("packer")).info())
            assert (
                len(
                    {
                        (
                            info.ack_floor.stream_seq,
                            info.ack_floor.consumer_seq,
                            info.num_redelivered,
                            info.num_ack_pending,
                        )
                        for info in infos
                    }
                )
                == 1
            )
