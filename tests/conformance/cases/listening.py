"""Subscribing to published messages, stored or not."""

from __future__ import annotations

from pelton.api import ConfigError, StoreClosedError
from pelton.connect import Jet
from pelton.jet import Subscription
from tests.conformance.cases.table import case, fails


async def _heard(listening: Subscription, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        message = await listening.next(timeout=20)
        assert message is not None, f"only {found}"
        found.append(message.data)
    return found


@case
async def what_is_published_is_heard(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    async with await jet.subscribe("s.>") as every, await jet.subscribe("s.*.x") as some:
        await jet.publish("s.a", b"1", headers={"K": "v"})
        await jet.publish("s.b.x", b"2")
        message = await every.next(timeout=20)
        assert message is not None
        assert (message.subject, message.data, message.headers["K"]) == ("s.a", b"1", "v")
        assert await _heard(every, 1) == [b"2"]
        assert await _heard(some, 1) == [b"2"]
        assert await some.next(timeout=0.1) is None


@case
async def a_batch_is_heard_in_its_order(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    async with await jet.subscribe("s.a") as listening:
        await jet.publish_batch([("s.a", b"%d" % n) for n in range(50)])
        assert await _heard(listening, 50) == [b"%d" % n for n in range(50)]


@case
async def nothing_from_before(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a", b"before")
    async with await jet.subscribe("s.a") as listening:
        await jet.publish("s.a", b"after")
        assert await _heard(listening, 1) == [b"after"]


@case
async def one_of_a_queue_hears_each(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    one, two = [await jet.subscribe("s.a", queue="q") for _ in range(2)]
    async with await jet.subscribe("s.a", queue="other") as other:
        await jet.publish_batch([("s.a", b"%d" % n) for n in range(40)])
        assert len(await _heard(other, 40)) == 40
    shares = []
    for member in (one, two):
        share = []
        while (message := await member.next(timeout=0.3)) is not None:
            share.append(int(message.data))
        shares.append(share)
        await member.close()
    assert sorted(shares[0] + shares[1]) == list(range(40))


@case
async def what_is_republished_is_heard(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"], republish={"src": "s.>", "dest": "again.>"})
    async with await jet.subscribe("again.>") as listening:
        await jet.publish("s.a", b"1")
        message = await listening.next(timeout=20)
        assert message is not None
        assert (message.subject, message.data, message.headers["Nats-Sequence"]) == ("again.a", b"1", "1")


@case
async def listening_ends_when_it_is_closed(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    listening = await jet.subscribe("s.a")
    await listening.close()
    await jet.publish("s.a")
    await fails(StoreClosedError, listening.next(timeout=60))


@case
async def a_bad_filter_is_refused(jet: Jet) -> None:
    await fails(ConfigError, jet.subscribe("s..a"))
    await fails(ConfigError, jet.subscribe("s.a", queue="a b"))
