"""The handles: names, defaults, pages and life cycles; the layers below have their own tests."""

from datetime import timedelta
from pathlib import Path

import pytest

import pelton
from pelton.testing import manual_runtime


async def test_closing_is_idempotent_and_final() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        await jet.close()
    await jet.close()
    for call in (jet.publish("s"), jet.publish_batch([("s", b"")]), stream.info(), jet.create_stream("t")):
        with pytest.raises(pelton.StoreClosedError):
            await call


async def test_an_opening_can_be_awaited_too(tmp_path: Path) -> None:
    jet = await pelton.open(tmp_path / "store")
    async with jet:
        await jet.create_stream("s")
    jet = await pelton.open(tmp_path / "store")
    assert await jet.stream_names() == ["s"]
    await jet.close()


async def test_configurations_are_written_in_seconds_and_lists_or_as_structs() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], max_age=timedelta(hours=1))
        assert stream.config == (await jet.stream("s")).config
        assert stream.config.max_age == 3600
        config = pelton.StreamConfig(name="t", subjects=("t",), max_msgs=3)
        assert (await jet.create_stream(config)).config.max_msgs == 3
        consumer = await stream.create_consumer(pelton.ConsumerConfig(durable_name="c"), ack_wait=2.5)
        assert consumer.config.ack_wait == 2.5


async def test_a_name_is_a_name() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        with pytest.raises(pelton.ConfigError, match="cannot name a consumer"):
            await stream.create_consumer(durable_name="a.b")


async def test_lists_come_in_pages() -> None:
    async with pelton.open("memory:") as jet:
        for number in range(300):
            await jet.create_stream(f"s{number:04}")
        assert len(await jet.stream_names()) == 300
        first = await jet.backend.call(pelton.StreamList())
        second = await jet.backend.call(pelton.StreamList(offset=256))
        assert (len(first.streams), len(second.streams), first.total) == (256, 44, 300)
        stream = await jet.stream("s0000")
        for number in range(300):
            await stream.create_consumer(durable_name=f"c{number:04}")
        assert len(await stream.consumer_names()) == 300
        listed = await jet.backend.call(pelton.ConsumerList(stream="s0000", offset=290))
        assert [info.name for info in listed.consumers] == [f"c{number:04}" for number in range(290, 300)]


async def test_handles_find_and_remove() -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("s")
        consumer = await stream.create_consumer(durable_name="c")
        assert (await stream.consumer("c")).config == consumer.config
        await stream.delete_consumer("c")
        with pytest.raises(pelton.ConsumerNotFoundError):
            await stream.delete_consumer("c")
        await jet.delete_stream("s")
        with pytest.raises(pelton.StreamNotFoundError) as refused:
            await jet.delete_stream("s")
        assert (refused.value.code, refused.value.err_code, refused.value.stream) == (404, 10059, "s")


async def test_headers_that_could_break_out_of_their_line_are_refused() -> None:
    async with pelton.open("memory:") as jet:
        await jet.create_stream("s")
        for headers in ({"A": "x\r\nB: y"}, {"A b": "x"}, {"": "x"}):
            with pytest.raises(pelton.ConfigError):
                await jet.publish("s", headers=headers)
        with pytest.raises(pelton.ConfigError):
            await jet.publish("s", msg_id="a\nb")


async def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    runtime = manual_runtime()
    path = tmp_path / "store"
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], retention="workqueue", max_msgs=100)
        consumer = await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1, ack_wait=10)
        await jet.publish_batch([(f"s.{number % 2}", b"%d" % number) for number in range(6)])
        await jet.publish("s.0", msg_id="once")
        first, second = await consumer.fetch(5)
        await first.ack()
        before = await stream.info(subjects_filter=">"), await consumer.info()
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.stream("s")
        consumer = await stream.consumer("c")
        assert (await stream.info(subjects_filter=">"), await consumer.info()) == before
        assert (await jet.publish("s.0", msg_id="once")).duplicate
        assert [message.data for message in await consumer.fetch(5, no_wait=True)] == [b"2"]
        runtime.clock.advance(10)
        assert [message.data for message in await consumer.fetch(1, no_wait=True)] == [b"1"]
        with pytest.raises(pelton.AckRejectedError):
            await jet.backend.settle(
                (), "s", "c", pelton.AckOp(seq=second.delivered.seq, consumer_seq=second.delivered.consumer_seq)
            )


async def test_two_openers_see_each_other_at_once(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "s") as one, pelton.open(tmp_path / "s") as two:
        await one.create_stream("s", subjects=["s.>"], max_msgs_per_subject=2)
        for number in range(1, 7):
            jet = (one, two)[number % 2]
            assert (await jet.publish("s.a", msg_id=f"{number}")).seq == number
        for jet in (one, two):
            assert (await jet.publish("s.a", msg_id="3")).duplicate
            state = (await (await jet.stream("s")).info()).state
            assert (state.messages, state.first_seq) == (2, 5)
        await two.delete_stream("s")
        with pytest.raises(pelton.NoStreamForSubjectError):
            await one.publish("s.a")
