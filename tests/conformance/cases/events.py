"""Advisories and metrics of streams and consumers, captured in a stream."""

from __future__ import annotations

import json
from typing import Any, Final

from pelton.api import Duration, MessageNotFoundError, StoredMessage, decode_event
from pelton.api.events import AckSample, ApiAudit, ConsumerAction, ConsumerPaused, Event, GroupUnpinned, MaxDeliveries
from pelton.api.times import ZERO_TIME
from pelton.connect import Jet
from pelton.jet import Consumer, Stream
from tests.conformance.cases.eventually import eventually, taken
from tests.conformance.cases.table import case, refused

_ADVISORY: Final = "$JS.EVENT.ADVISORY"
_COMMON: Final = ["type", "id", "timestamp"]


class _Record:
    """A stream that captures events."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def messages(self, subject: str) -> list[StoredMessage]:
        """Return the events published to a subject so far."""
        found: list[StoredMessage] = []
        while True:
            try:
                found.append(await self._stream.get_next_message(subject, found[-1].seq + 1 if found else 1))
            except MessageNotFoundError:
                return found

    async def count(self, subject: str, expected: int) -> None:
        """Assert how often an event is published to a subject."""

        async def said() -> int:
            return len(await self.messages(subject))

        await eventually(said, expected)

    async def one(self, subject: str, keys: list[str]) -> Any:
        """Return the only event on a subject; its JSON has exactly these keys, in this order."""
        await self.count(subject, 1)
        (message,) = await self.messages(subject)
        assert list(json.loads(message.data)) == [*_COMMON, *keys]
        event = decode_event(message.data)
        assert isinstance(event, Event)
        assert event.subject == subject
        assert event.id
        return event


async def _record(jet: Jet, *subjects: str) -> _Record:
    return _Record(await jet.create_stream("RECORD", subjects=list(subjects)))


async def _stream(jet: Jet) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"])


async def _consumer(jet: Jet, **config: Any) -> Consumer:
    stream = await _stream(jet)
    await jet.publish_batch([("s.a", b"")] * 3)
    return await stream.create_consumer(durable_name="c", **config)


@case
async def a_stream_is_created_updated_and_deleted(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.STREAM.>")
    await _stream(jet)
    event = await record.one(f"{_ADVISORY}.STREAM.CREATED.S", ["stream", "action"])
    assert (event.stream, event.action) == ("S", "create")
    await jet.update_stream("S", max_msgs=5)
    event = await record.one(f"{_ADVISORY}.STREAM.UPDATED.S", ["stream", "action"])
    assert event.action == "modify"
    await jet.delete_stream("S")
    event = await record.one(f"{_ADVISORY}.STREAM.DELETED.S", ["stream", "action"])
    assert event.action == "delete"


@case
async def a_stream_hears_of_its_own_creation(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.STREAM.>")
    await record.one(f"{_ADVISORY}.STREAM.CREATED.RECORD", ["stream", "action"])


@case
async def what_changes_nothing_is_not_said(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.STREAM.>", f"{_ADVISORY}.CONSUMER.>")
    for _ in range(2):
        stream = await _stream(jet)
        await stream.create_consumer(durable_name="c")
    await stream.create_consumer(durable_name="c", description="another")
    await jet.update_stream("S", description="another")
    await record.count(f"{_ADVISORY}.STREAM.UPDATED.S", 1)
    await record.count(f"{_ADVISORY}.STREAM.CREATED.S", 1)
    for said, times in (("CREATED", 1), ("UPDATED", 0), ("DELETED", 0)):
        await record.count(f"{_ADVISORY}.CONSUMER.{said}.S.c", times)


@case
async def a_consumer_is_created_and_deleted(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.>")
    consumer = await _consumer(jet)
    event = await record.one(f"{_ADVISORY}.CONSUMER.CREATED.S.c", ["stream", "consumer", "action"])
    assert (event.stream, event.consumer, event.action) == ("S", "c", "create")
    await consumer.delete()
    event = await record.one(f"{_ADVISORY}.CONSUMER.DELETED.S.c", ["stream", "consumer", "action"])
    assert event.action == "delete"


@case
async def consumers_are_deleted_with_their_stream(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.>")
    await _consumer(jet)
    await jet.delete_stream("S")
    assert isinstance(
        await record.one(f"{_ADVISORY}.CONSUMER.DELETED.S.c", ["stream", "consumer", "action"]), ConsumerAction
    )


@case
async def a_message_is_given_back(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.MSG_NAKED.>")
    consumer = await _consumer(jet)
    (message,) = await consumer.fetch(1)
    await message.nak()
    names = ["stream", "consumer", "consumer_seq", "stream_seq", "deliveries"]
    event = await record.one(f"{_ADVISORY}.CONSUMER.MSG_NAKED.S.c", names)
    assert (event.stream, event.consumer) == ("S", "c")
    assert (event.consumer_seq, event.stream_seq, event.deliveries) == (1, 1, 1)


@case
async def a_message_is_terminated(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.MSG_TERMINATED.>")
    consumer = await _consumer(jet)
    await (await consumer.fetch(1))[0].nak()
    again = await consumer.fetch(1, timeout=60)
    await again[0].term(reason="cannot be read")
    names = ["stream", "consumer", "consumer_seq", "stream_seq", "deliveries", "reason"]
    event = await record.one(f"{_ADVISORY}.CONSUMER.MSG_TERMINATED.S.c", names)
    assert (event.consumer_seq, event.stream_seq, event.deliveries) == (2, 1, 2)
    assert event.reason == "cannot be read"


@case
async def without_a_reason_none_is_said(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.MSG_TERMINATED.>")
    consumer = await _consumer(jet)
    await (await consumer.fetch(1))[0].term()
    names = ["stream", "consumer", "consumer_seq", "stream_seq", "deliveries"]
    await record.one(f"{_ADVISORY}.CONSUMER.MSG_TERMINATED.S.c", names)


@case
async def a_message_was_delivered_often_enough(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.MAX_DELIVERIES.>")
    consumer = await _consumer(jet, max_deliver=2, ack_wait=0.2, filter_subject="s.b")
    await jet.publish("s.b")
    assert len(await consumer.fetch(1)) == 1
    assert len(await consumer.fetch(1, timeout=60)) == 1
    assert await consumer.fetch(1, timeout=1) == []
    event = await record.one(
        f"{_ADVISORY}.CONSUMER.MAX_DELIVERIES.S.c", ["stream", "consumer", "stream_seq", "deliveries"]
    )
    assert isinstance(event, MaxDeliveries)
    assert (event.stream_seq, event.deliveries) == (4, 2)


@case
async def acks_are_sampled(jet: Jet) -> None:
    subject = "$JS.EVENT.METRIC.CONSUMER.ACK.S.c"
    record = await _record(jet, "$JS.EVENT.METRIC.>")
    consumer = await _consumer(jet, sample_freq="100%")
    assert consumer.config.sample_freq == "100%"
    one, two, three = await taken(consumer, 3)
    await one.nak()
    await two.term()
    await three.ack()
    names = ["stream", "consumer", "consumer_seq", "stream_seq", "ack_time", "deliveries"]
    event = await record.one(subject, names)
    assert isinstance(event, AckSample)
    assert (event.consumer_seq, event.stream_seq, event.deliveries) == (3, 3, 1)
    assert Duration(0) <= event.ack_time < Duration(30)


@case
async def a_share_of_nothing_samples_nothing(jet: Jet) -> None:
    subject = "$JS.EVENT.METRIC.CONSUMER.ACK.S.c"
    record = await _record(jet, "$JS.EVENT.METRIC.>")
    consumer = await _consumer(jet, sample_freq="0")
    one, two, _ = await taken(consumer, 3)
    await one.ack()
    await (await jet.stream("S")).create_consumer(durable_name="c", sample_freq="100")
    await two.ack()
    event = await record.one(subject, ["stream", "consumer", "consumer_seq", "stream_seq", "ack_time", "deliveries"])
    assert event.stream_seq == 2


@case
async def what_is_no_share_is_refused(jet: Jet) -> None:
    stream = await _stream(jet)
    for text in ("abc", "1.5", " 30", "%", "5%0", "50 %"):
        error = await refused(10095, stream.create_consumer(durable_name="c", sample_freq=text))
        assert error.description.endswith(f'parsing "{text.removesuffix("%")}": invalid syntax')
    await refused(10095, stream.create_consumer(durable_name="c", sample_freq="-1"))
    for text in ("0", "50", "50%", "+5", "200%"):
        consumer = await stream.create_consumer(durable_name="c", sample_freq=text)
        assert consumer.config.sample_freq == text
    await stream.create_consumer(durable_name="free", ack_policy="none", sample_freq="50")


async def _audits(reader: Consumer, expected: int) -> list[ApiAudit]:
    """Return that many audits, read by a consumer: a request for a missing message would be audited as well."""
    audits: list[ApiAudit] = []
    while len(audits) < expected:
        for message in await reader.fetch(expected - len(audits), timeout=5):
            assert list(json.loads(message.data))[:6] == [*_COMMON, "server", "client", "subject"]
            event = decode_event(message.data)
            assert isinstance(event, ApiAudit)
            assert event.subject == message.subject
            audits.append(event)
    assert await reader.fetch(1, no_wait=True) == []
    return audits


@case
async def requests_are_audited(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a")
    record = await jet.create_stream("RECORD", subjects=[f"{_ADVISORY}.API"])
    reader = await record.create_consumer(durable_name="reader")
    await stream.purge(keep=1)
    made, _, purged = sorted(await _audits(reader, 3), key=lambda event: event.timestamp)
    assert (made.api_subject, purged.api_subject) == ("$JS.API.STREAM.CREATE.RECORD", "$JS.API.STREAM.PURGE.S")
    assert json.loads(made.request)["name"] == "RECORD"
    assert json.loads(made.response)["did_create"]
    assert json.loads(purged.request) == {"keep": 1}
    reply = {"type": "io.nats.jetstream.api.v1.stream_purge_response", "success": True, "purged": 0}
    assert json.loads(purged.response) == reply
    assert purged.client.kind == "Client"
    assert purged.client.server == purged.server != ""


@case
async def refusals_and_reads_are_audited(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish("s.a")
    record = await jet.create_stream("RECORD", subjects=[f"{_ADVISORY}.API"])
    reader = await record.create_consumer(durable_name="reader")
    await refused(10059, jet.delete_stream("OTHER"))
    await stream.info()
    await stream.get_message(1)
    await jet.stream_names()
    audits = {event.api_subject.removeprefix("$JS.API."): event for event in await _audits(reader, 5)}
    made = {"STREAM.CREATE.RECORD", "CONSUMER.CREATE.RECORD.reader"}
    assert set(audits) - made == {"STREAM.DELETE.OTHER", "STREAM.INFO.S", "STREAM.NAMES"}
    assert json.loads(audits["STREAM.DELETE.OTHER"].response)["error"]["err_code"] == 10059


@case
async def a_consumer_is_paused_and_goes_on(jet: Jet) -> None:
    subject = f"{_ADVISORY}.CONSUMER.PAUSE.S.c"
    record = await _record(jet, subject)
    consumer = await _consumer(jet)
    await consumer.resume()
    await consumer.pause("2099-01-01T00:00:00Z")
    event = await record.one(subject, ["stream", "consumer", "paused", "pause_until"])
    assert (event.paused, event.pause_until) == (True, "2099-01-01T00:00:00Z")
    await consumer.resume()
    await record.count(subject, 2)
    event = decode_event((await record.messages(subject))[-1].data)
    assert isinstance(event, ConsumerPaused)
    assert (event.paused, event.pause_until) == (False, ZERO_TIME)


@case
async def a_consumer_is_created_paused(jet: Jet) -> None:
    subject = f"{_ADVISORY}.CONSUMER.PAUSE.S.c"
    record = await _record(jet, subject)
    await _consumer(jet, pause_until="2099-01-01T00:00:00Z")
    event = await record.one(subject, ["stream", "consumer", "paused", "pause_until"])
    assert event.paused


@case
async def a_group_is_pinned_and_unpinned(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.PINNED.>", f"{_ADVISORY}.CONSUMER.UNPINNED.>")
    consumer = await _consumer(jet, priority_groups=["A"], priority_policy="pinned_client", priority_timeout=30)
    assert len(await consumer.fetch(1, group="A", timeout=5)) == 1
    event = await record.one(
        f"{_ADVISORY}.CONSUMER.PINNED.S.c", ["account", "stream", "consumer", "group", "pinned_id"]
    )
    assert (event.stream, event.consumer, event.group) == ("S", "c", "A")
    assert event.pinned_id == consumer.pin("A")
    await consumer.unpin("A")
    event = await record.one(f"{_ADVISORY}.CONSUMER.UNPINNED.S.c", ["account", "stream", "consumer", "group", "reason"])
    assert (event.group, event.reason) == ("A", "admin")


@case
async def a_pin_times_out(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.UNPINNED.>")
    consumer = await _consumer(jet, priority_groups=["A"], priority_policy="pinned_client", priority_timeout=0.2)
    another = await (await jet.stream("S")).consumer("c")
    assert len(await consumer.fetch(1, group="A", timeout=5)) == 1
    assert len(await another.fetch(1, group="A", timeout=5)) == 1

    async def said() -> bool:
        return bool(await record.messages(f"{_ADVISORY}.CONSUMER.UNPINNED.S.c"))

    await eventually(said, True)
    event = decode_event((await record.messages(f"{_ADVISORY}.CONSUMER.UNPINNED.S.c"))[0].data)
    assert isinstance(event, GroupUnpinned)
    assert (event.group, event.reason) == ("A", "timeout")


@case
async def an_unused_consumer_is_deleted(jet: Jet) -> None:
    record = await _record(jet, f"{_ADVISORY}.CONSUMER.DELETED.>")
    stream = await _stream(jet)
    await stream.create_consumer(inactive_threshold=0.2)

    async def left() -> int:
        return len(await stream.consumer_names())

    await eventually(left, 0)
    await record.count(f"{_ADVISORY}.CONSUMER.DELETED.S.*", 1)
