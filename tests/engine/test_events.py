"""Events of an embedded store: their subscribers, their cost, and those of a rolled back transaction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pelton
from pelton.api import AckOp, AckRejectedError, AckSample, MessageNaked, Outgoing, StreamAction, decode_event
from pelton.testing import manual_runtime


async def _heard(subscription: pelton.Subscription) -> list[pelton.Event | None]:
    found = []
    while (message := await subscription.next(timeout=0)) is not None:
        found.append(decode_event(message.data))
    return found


async def test_whoever_listens_hears_them() -> None:
    async with pelton.open("memory:", runtime=manual_runtime()) as jet:
        listening = await jet.backend.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
        await jet.create_stream("S", subjects=["s"])
        await jet.delete_stream("S")
        made, gone = await _heard(listening)
        assert isinstance(made, StreamAction)
        assert isinstance(gone, StreamAction)
        assert (made.action, gone.action) == ("create", "delete")
        assert made.id != gone.id


async def test_where_nobody_listens_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = manual_runtime()
    async with pelton.open(str(tmp_path / "store"), runtime=runtime) as jet:
        monkeypatch.setattr(runtime.ids, "new", lambda: pytest.fail("an id was drawn"))
        stream = await jet.create_stream("S", subjects=["s"])
        await jet.publish_batch([("s", b"")] * 2)
        consumer = await stream.create_consumer(durable_name="c", sample_freq="100")
        one, two = await consumer.fetch(2)
        await one.nak()
        await two.ack()
        await consumer.delete()


async def test_what_is_rolled_back_was_never_said(tmp_path: Path) -> None:
    async with pelton.open(str(tmp_path / "store"), runtime=manual_runtime()) as jet:
        listening = await jet.backend.subscribe("$JS.EVENT.>")
        stream = await jet.create_stream("S", subjects=["s"], max_msg_size=1)
        await jet.publish("s")
        consumer = await stream.create_consumer(durable_name="c")
        (message,) = await consumer.fetch(1)
        await _heard(listening)
        nak = AckOp(kind="nak", seq=1, consumer_seq=1)
        # The publish is refused, so the message is not given back either.
        with pytest.raises(pelton.MessageTooLargeError):
            await jet.backend.settle([Outgoing("s", b"too large")], "S", "c", nak)
        assert await _heard(listening) == []
        await message.nak()
        (event,) = await _heard(listening)
        assert isinstance(event, MessageNaked)
        await message.term()
        with pytest.raises(AckRejectedError):
            await message.term()
        assert len(await _heard(listening)) == 1


async def test_a_share_of_acks_is_sampled_with_the_time_they_took() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        listening = await jet.backend.subscribe("$JS.EVENT.METRIC.>")
        stream = await jet.create_stream("S", subjects=["s"])
        await jet.publish_batch([("s", b"")] * 400)
        consumer = await stream.create_consumer(durable_name="c", sample_freq="25%", backoff=[1, 10])
        messages = await consumer.fetch(400)
        runtime.clock.advance(0.5)
        await consumer.ack(messages)
        events = await _heard(listening)
        assert 60 < len(events) < 140
        assert all(isinstance(event, AckSample) and event.ack_time == 0.5 for event in events)


async def test_the_time_an_ack_took_begins_with_the_last_sign_of_life() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        listening = await jet.backend.subscribe("$JS.EVENT.METRIC.>")
        stream = await jet.create_stream("S", subjects=["s"])
        await jet.publish("s")
        consumer = await stream.create_consumer(durable_name="c", sample_freq="100", backoff=[1, 10])
        await consumer.fetch(1)
        runtime.clock.advance(1)
        (message,) = await consumer.fetch(1)
        runtime.clock.advance(2)
        await message.in_progress()
        runtime.clock.advance(3)
        await message.ack()
        (event,) = await _heard(listening)
        assert isinstance(event, AckSample)
        assert (event.deliveries, event.ack_time) == (2, pelton.Duration(3))


async def test_another_process_hears_them(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    async with pelton.open(path) as here, pelton.open(path) as there:
        listening = await there.backend.subscribe("$JS.EVENT.ADVISORY.API")
        await here.create_stream("S", subjects=["s"])
        message = await listening.next(timeout=60)
        assert message is not None
        event = json.loads(message.data)
        assert event["subject"] == "$JS.API.STREAM.CREATE.S"
        assert event["client"]["lang"] == "python3"
        assert event["client"]["ver"] == pelton.__version__
        await listening.close()
