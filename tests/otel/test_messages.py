"""Traces of messages: what is sent, fetched, processed and settled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind, StatusCode

import pelton
import pelton.otel
from tests.otel.recording import Recording, identity, links_of, parent_of


async def test_a_message_is_one_trace_from_publish_to_ack(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        shipping = await orders.create_consumer(durable_name="shipping")
        with recording.tracer.start_as_current_span("request") as request:
            await jet.publish("orders.eu", b"a secret", headers={"Shop": "north"})
        (message,) = await shipping.fetch(1)
        with pelton.otel.process(message):
            await message.ack()

    assert message.headers["Shop"] == "north"
    sent, got = recording.span("publish orders"), recording.span("receive orders")
    process, ack = recording.span("process orders"), recording.span("ack orders")
    assert parent_of(sent) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert parent_of(process) == identity(sent)
    assert parent_of(ack) == identity(process)
    assert links_of(got) == links_of(process) == links_of(ack) == [identity(sent)]
    assert [one.kind for one in (sent, got, process, ack)] == [
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    ]
    system = "nats" if "://" in address else "pelton"
    assert dict(process.attributes or {}) == {
        "messaging.system": system,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "shipping",
        "messaging.message.id": "1",
        "pelton.subject": "orders.eu",
        "pelton.delivery": 1,
    }
    assert "secret" not in "".join(span.to_json() for span in recording.spans)
    points = recording.points()
    where = {"messaging.system": system, "messaging.destination.name": "orders"}
    [(labels, sent_count)] = points["messaging.client.sent.messages"]
    assert sent_count == 1
    assert labels == {**where, "messaging.operation.name": "publish", "messaging.operation.type": "send"}
    [(labels, consumed)] = points["messaging.client.consumed.messages"]
    assert consumed == 1
    assert labels["messaging.consumer.group.name"] == "shipping"
    assert [count for _, count in points["messaging.process.duration"]] == [1]
    done = {labels["messaging.operation.name"] for labels, _ in points["messaging.client.operation.duration"]}
    assert done == {"publish", "receive", "ack"}


async def test_a_batch_shares_the_context_of_its_publish(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        orders = await jet.create_stream("orders", subjects=["orders.>"], allow_atomic=True)
        shipping = await orders.create_consumer(durable_name="shipping")
        await jet.publish_batch([("orders.1", b""), ("orders.2", b"", {"traceparent": "their own"})])
        await jet.publish_atomic([("orders.3", b""), ("orders.4", b"")])
        messages = await shipping.fetch(10)
        await shipping.ack(messages)
    first, second = (span for span in recording.spans if span.name == "publish orders")
    assert (first.attributes or {})["messaging.batch.message_count"] == 2
    assert messages[1].headers["traceparent"] == "their own"
    assert links_of(recording.span("receive orders")) == [identity(first), identity(second), identity(second)]
    assert (recording.span("ack orders").attributes or {})["messaging.batch.message_count"] == 4


async def test_a_callback_is_a_process_span(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await orders.create_consumer(durable_name="shipping")
        shipping = await orders.consumer("shipping")
        await jet.publish("orders.1", b"")
        done = asyncio.Event()

        async def ship(message: pelton.Message) -> None:
            if message.metadata.num_delivered == 1:
                raise KeyError("no such address")
            with recording.tracer.start_as_current_span("ship"):
                done.set()

        task = asyncio.create_task(shipping.consume(ship))
        await asyncio.wait_for(done.wait(), 60)
        task.cancel()
        await asyncio.wait([task])
    failed, shipped = (span for span in recording.spans if span.name == "process orders")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "KeyError"
    assert parent_of(recording.span("ship")) == identity(shipped)
    assert parent_of(failed) == parent_of(shipped) == identity(recording.span("publish orders"))
    assert "receive orders" not in recording.names
    [(_, consumed)] = recording.points()["messaging.client.consumed.messages"]
    assert consumed == 2


async def test_a_refused_publish_is_an_error(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        await jet.create_stream("orders", subjects=["orders.>"])
        with pytest.raises(pelton.ExpectationError):
            await jet.publish("orders.1", b"", expected_last_seq=7)
    span = recording.span("publish")
    assert span.status.status_code is StatusCode.ERROR
    [(labels, count)] = recording.points()["messaging.client.sent.messages"]
    assert count == 1
    assert labels["error.type"] == "WrongLastSequenceError"


async def test_what_pelton_does_for_itself_is_not_traced(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        bucket = await jet.create_bucket("settings")
        await bucket.put("colour", b"green")
        files = await jet.create_objects("files")
        await files.put("a", b"b")
        async with jet.lock("one"):
            pass
        pelton.otel.uninstrument(jet)
        await jet.create_stream("orders", subjects=["orders.>"])
        await jet.publish("orders.1", b"")
    assert recording.names == []


async def test_an_iteration_counts_what_it_hands_out(tmp_path: Path, recording: Recording) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        recording.instrument(jet)
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        consumer = await orders.create_consumer(durable_name="shipping")
        await jet.publish_batch([("orders.1", b"")] * 3)
        messages = consumer.messages()
        await anext(messages)
        await messages.aclose()
    [(_, consumed)] = recording.points()["messaging.client.consumed.messages"]
    assert consumed == 1
    assert "receive orders" not in recording.names


async def test_a_transaction_and_a_delayed_message_carry_the_context(tmp_path: Path, recording: Recording) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        recording.instrument(jet)
        orders = await jet.create_stream("orders", subjects=["orders.>", "later.>"], allow_msg_schedules=True)
        shipping = await orders.create_consumer(durable_name="shipping", filter_subject="orders.>")
        async with jet.transaction() as tx:
            await tx.publish("orders.1", b"")
        await jet.schedule("later.2", b"", target="orders.2", delay=0.01)
        first, second = await shipping.next(), await shipping.next()
        assert first is not None
        assert second is not None
        async with jet.transaction() as tx:
            await tx.ack(first, second)
    sent, scheduled = (span for span in recording.spans if span.name == "publish orders")
    got = [span for span in recording.spans if span.name == "receive orders"]
    assert [links_of(span) for span in got] == [[identity(sent)], [identity(scheduled)]]
    assert links_of(recording.span("ack orders")) == [identity(sent), identity(scheduled)]


def test_blocking_calls_belong_to_the_span_of_their_thread(address: str, recording: Recording) -> None:
    with pelton.sync.open(address) as jet:
        recording.instrument(jet)
        orders = jet.create_stream("orders", subjects=["orders.>"])
        shipping = orders.create_consumer(durable_name="shipping")
        with recording.tracer.start_as_current_span("request") as request:
            jet.publish("orders.1", b"")
        (message,) = shipping.fetch(1)
        with pelton.otel.process(message):
            message.ack()
    sent, process = recording.span("publish orders"), recording.span("process orders")
    assert parent_of(sent) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert parent_of(process) == identity(sent)
    assert parent_of(recording.span("ack orders")) == identity(process)


async def test_wrong_things_are_told() -> None:
    with pytest.raises(pelton.ConfigError, match="no open store"):
        pelton.otel.instrument("shop.pelton")  # type: ignore[arg-type]
    with pytest.raises(pelton.ConfigError, match="no message"):
        pelton.otel.process(b"")  # type: ignore[arg-type]
