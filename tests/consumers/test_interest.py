"""Interest retention when transactions fail, and together with exclusive subjects."""

from __future__ import annotations

from pathlib import Path

import pytest

import pelton
from pelton.api import AckOp, Outgoing
from pelton.engine.salvage import recount


async def _messages(jet: pelton.Jet) -> int:
    return (await (await jet.stream("S")).info()).state.messages


async def test_what_is_rolled_back_was_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with pelton.open(path) as jet, pelton.open(path) as other:
        stream = await jet.create_stream("S", subjects=["s"], retention="interest")
        await jet.create_stream("OUT", subjects=["out"], max_msg_size=1)
        consumers = [await stream.create_consumer(durable_name=name) for name in ("one", "two")]
        await jet.publish("s")
        for consumer in consumers:
            (message,) = await consumer.fetch(1)
            ack = AckOp(seq=1, consumer_seq=message.metadata.consumer_seq)
            with pytest.raises(pelton.MessageTooLargeError):
                await jet.backend.settle([Outgoing("out", b"too large")], "S", consumer.name, ack)
            assert await _messages(jet) == await _messages(other) == 1
            await message.ack()
        assert await _messages(jet) == await _messages(other) == 0
    assert recount(str(path)) == []


async def test_a_consumer_of_another_process_keeps_messages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with pelton.open(path) as here, pelton.open(path) as there:
        stream = await here.create_stream("S", subjects=["s"], retention="interest")
        await here.publish("s")
        consumer = await (await there.stream("S")).create_consumer(durable_name="c")
        await here.publish_batch([("s", b"")] * 2)
        assert await _messages(here) == 2
        await consumer.ack(await consumer.fetch(2))
        await consumer.delete()
        await here.publish("s")
        assert (await stream.info()).state.messages == 0
    assert recount(str(path)) == []


async def test_what_waits_behind_its_subject_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("S", subjects=["s.*"], retention="interest")
        exclusive = await stream.create_consumer(durable_name="exclusive", max_ack_pending_per_subject=1)
        quick = await stream.create_consumer(durable_name="quick")
        await jet.publish_batch([("s.a", b""), ("s.a", b""), ("s.b", b""), ("s.a", b"")])
        first, other = await exclusive.fetch(4, no_wait=True)
        await quick.ack(await quick.fetch(4))
        assert await _messages(jet) == 4
        await first.ack()
        await other.ack()
        assert await _messages(jet) == 2
        assert recount(str(path)) == []
        await exclusive.delete()
        assert await _messages(jet) == 0
    assert recount(str(path)) == []


async def test_a_consumer_that_begins_later_does_not_keep_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("S", subjects=["s"], retention="interest")
        await stream.create_consumer(durable_name="c", deliver_policy="by_start_sequence", opt_start_seq=3)
        await jet.publish_batch([("s", b"")] * 4)
        state = (await stream.info()).state
        assert (state.messages, state.first_seq, state.last_seq) == (2, 3, 4)
    assert recount(str(path)) == []


async def test_a_reset_wants_what_is_left_and_lets_go_of_what_it_passes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("S", subjects=["s"], retention="interest")
        consumer = await stream.create_consumer(durable_name="c")
        await jet.publish_batch([("s", b"")] * 4)
        await consumer.fetch(2)
        await consumer.reset(4)
        assert await _messages(jet) == 1
        (message,) = await consumer.fetch(4, no_wait=True)
        assert message.metadata.stream_seq == 4
    assert recount(str(path)) == []
