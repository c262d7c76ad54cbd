"""Priority groups of pull consumers (ADR-42)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from pelton.api import BadRequestError, ConfigError, ConsumerUnpin
from pelton.connect import Jet
from pelton.jet import Consumer, Message, Stream
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case, fails, lagging, only, refused


async def _stream(jet: Jet, messages: int = 0) -> Stream:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b"%d" % n) for n in range(messages)])
    return stream


async def _consumer(stream: Stream, policy: str, **config: Any) -> Consumer:
    return await stream.create_consumer(durable_name="c", priority_policy=policy, priority_groups=["g"], **config)


async def _client(stream: Stream) -> Consumer:
    """A handle of another client, which does not know of the first one's pin."""
    return await stream.consumer("c")


async def _waiting(consumer: Consumer, count: int) -> None:
    while (await consumer.info()).num_waiting != count:  # the number is the event
        await asyncio.sleep(0)


def _seqs(messages: list[Message]) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


async def _in_time(asked: Awaitable[list[Message]]) -> list[int]:
    return _seqs(await asyncio.wait_for(asked, 60))


@case
async def a_pull_names_its_group(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 1), "overflow")
    error = await fails(BadRequestError, consumer.fetch(1, no_wait=True))
    assert error.description == "Bad Request - Priority Group missing"
    error = await fails(BadRequestError, consumer.fetch(1, no_wait=True, group="other"))
    assert error.description == "Bad Request - Invalid Priority Group"
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g")) == [1]


@case
async def info_names_the_groups(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet), "prioritized")
    (state,) = (await consumer.info()).priority_groups
    assert (state.group, state.pinned_client_id, state.pinned_ts) == ("g", "", "0001-01-01T00:00:00Z")


@case
async def conditions_are_for_overflow(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 1), "prioritized")
    error = await fails(BadRequestError, consumer.fetch(1, no_wait=True, group="g", min_pending=1))
    assert error.description == "Bad Request - Not a Overflow Priority consumer"


# --- overflow


@case
async def enough_must_be_pending(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 3), "overflow")
    assert await consumer.fetch(1, no_wait=True, group="g", min_pending=4) == []
    assert await consumer.fetch(1, timeout=0.2, group="g", min_pending=4) == []
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g", min_pending=3)) == [1]
    assert await consumer.fetch(1, no_wait=True, group="g", min_pending=3) == []


@case
async def enough_must_await_acks(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 5), "overflow")
    assert await consumer.fetch(1, no_wait=True, group="g", min_ack_pending=2) == []
    assert len(await consumer.fetch(2, no_wait=True, group="g")) == 2
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g", min_ack_pending=2)) == [3]


@case
async def either_condition_is_enough(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 2), "overflow")
    assert await consumer.fetch(1, no_wait=True, group="g", min_pending=9, min_ack_pending=1) == []
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g", min_pending=2, min_ack_pending=9)) == [1]
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g", min_pending=9, min_ack_pending=1)) == [2]


@case
async def a_waiting_one_is_served_once_its_condition_holds(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _consumer(stream, "overflow")
    waiting = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", min_pending=3), "a pull")
    await _waiting(consumer, 1)
    await jet.publish("s.a")
    await jet.publish("s.a")
    await jet.publish("s.a")
    assert await _in_time(waiting) == [1]


@only("engine", "ADR-42 asks for it; nats-server 2.15 serves them as they came")
async def those_without_conditions_come_first(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _consumer(stream, "overflow", max_ack_pending=1)
    conditional = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", min_pending=1), "a pull")
    await _waiting(consumer, 1)
    plain = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g"), "a pull")
    await _waiting(consumer, 2)
    await jet.publish("s.a")
    first = await asyncio.wait_for(plain, 60)
    assert _seqs(first) == [1]
    await jet.publish("s.a")
    await first[0].ack()
    assert await _in_time(conditional) == [2]


# --- prioritized


@case
async def priorities_are_0_to_9(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 2), "prioritized")
    for priority in (-1, 10):
        error = await fails(BadRequestError, consumer.fetch(1, no_wait=True, group="g", priority=priority))
        assert error.description == "Bad Request - Priority must be between 0 and 9"
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g", priority=9)) == [1]


@case
async def the_lower_number_comes_first(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _consumer(stream, "prioritized")
    low = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", priority=5), "a pull")
    await _waiting(consumer, 1)
    high = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", priority=1), "a pull")
    await _waiting(consumer, 2)
    await jet.publish("s.a")
    assert await _in_time(high) == [1]
    await jet.publish("s.a")
    assert await _in_time(low) == [2]


@case
async def equals_take_turns(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _consumer(stream, "prioritized")
    one = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", priority=3), "a pull")
    await _waiting(consumer, 1)
    two = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", priority=3), "a pull")
    await _waiting(consumer, 2)
    await jet.publish("s.a")
    await jet.publish("s.a")
    assert sorted(await _in_time(one) + await _in_time(two)) == [1, 2]


# --- pinned client


@case
async def the_first_that_gets_a_message_is_pinned(jet: Jet) -> None:
    stream = await _stream(jet, 4)
    consumer = await _consumer(stream, "pinned_client")
    messages = await consumer.fetch(2, no_wait=True, group="g")
    pin = messages[0].headers["Nats-Pin-Id"]
    assert len(pin) == 22
    assert messages[1].headers["Nats-Pin-Id"] == pin == consumer.pin("g")
    (state,) = (await consumer.info()).priority_groups
    assert (state.group, state.pinned_client_id) == ("g", pin)
    assert state.pinned_ts > "2001"
    assert _seqs(await consumer.fetch(9, no_wait=True, group="g")) == [3, 4]


@case
async def others_stand_by(jet: Jet) -> None:
    stream = await _stream(jet, 3)
    consumer = await _consumer(stream, "pinned_client")
    standby = await _client(stream)
    assert len(await consumer.fetch(1, no_wait=True, group="g")) == 1
    assert await standby.fetch(1, no_wait=True, group="g") == []
    assert await standby.fetch(1, timeout=0.2, group="g") == []
    assert standby.pin("g") == ""
    assert _seqs(await consumer.fetch(1, no_wait=True, group="g")) == [2]


@case
async def a_pin_that_is_silent_for_too_long_is_lost(jet: Jet) -> None:
    stream = await _stream(jet, 3)
    consumer = await _consumer(stream, "pinned_client", priority_timeout=1)
    standby = await _client(stream)
    await consumer.ack(await consumer.fetch(1, no_wait=True, group="g"))
    old = consumer.pin("g")
    assert await _in_time(standby.fetch(1, timeout=20, group="g")) == [2]
    assert standby.pin("g") not in ("", old)
    # The old one learns it when it pulls, and then is on standby itself.
    assert await consumer.fetch(1, no_wait=True, group="g") == []
    assert consumer.pin("g") == ""


@case
async def an_unpinned_client_makes_room(jet: Jet) -> None:
    stream = await _stream(jet, 3)
    consumer = await _consumer(stream, "pinned_client")
    standby = await _client(stream)
    await consumer.ack(await consumer.fetch(1, no_wait=True, group="g"))
    waiting = jet.runtime.spawn(standby.fetch(1, timeout=20, group="g"), "a pull")
    await _waiting(consumer, 1)
    await consumer.unpin("g")
    assert await _in_time(waiting) == [2]
    assert (await consumer.info()).priority_groups[0].pinned_client_id == standby.pin("g")


@case
async def only_its_groups_can_be_unpinned(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await _consumer(stream, "pinned_client")
    await refused(10160, consumer.unpin("other"))
    await refused(10025, consumer.unpin(""))
    await consumer.unpin("g")


@only("engine", "ADR-42 asks for it; nats-server 2.15 pins the next at once")
async def what_the_unpinned_client_works_on_is_finished_first(jet: Jet) -> None:
    stream = await _stream(jet, 3)
    consumer = await _consumer(stream, "pinned_client")
    standby = await _client(stream)
    (taken,) = await consumer.fetch(1, no_wait=True, group="g")
    await consumer.unpin("g")
    assert await standby.fetch(1, no_wait=True, group="g") == []
    waiting = jet.runtime.spawn(standby.fetch(1, timeout=20, group="g"), "a pull")
    await _waiting(consumer, 1)
    await taken.ack()
    assert await _in_time(waiting) == [2]


@lagging("a pin that ends between two pulls of a busy server ends unsaid", busy=True)
async def clients_are_told_of_their_pin(jet: Jet) -> None:
    stream = await _stream(jet, 2)
    consumer = await _consumer(stream, "pinned_client")
    standby = await _client(stream)
    told: list[str] = []
    tell: dict[str, Any] = {"on_pinned": lambda g: told.append(f"+{g}"), "on_unpinned": lambda g: told.append(f"-{g}")}
    await consumer.ack(await consumer.fetch(1, group="g", **tell))
    await consumer.ack(await consumer.fetch(1, group="g", **tell))
    assert told == ["+g"]
    waiting = jet.runtime.spawn(consumer.fetch(1, timeout=20, group="g", **tell), "a pull")
    other = jet.runtime.spawn(standby.fetch(1, timeout=20, group="g"), "a pull")
    await _waiting(consumer, 2)
    await consumer.unpin("g")
    await jet.publish("s.a")
    await jet.publish("s.a")
    # The first to pull after it is pinned, and the other is on standby.
    done, left = await asyncio.wait([waiting, other], timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1

    async def heard() -> list[str]:
        return told

    # The one that lost the pin may learn of it later than the other gets its message.
    await eventually(heard, ["+g", "-g"] if other in done else ["+g", "-g", "+g"])
    for task in left:
        task.cancel()
    await asyncio.wait([waiting, other])


@case
async def whoever_waits_keeps_its_pin(jet: Jet) -> None:
    stream = await _stream(jet, 1)
    consumer = await _consumer(stream, "pinned_client", priority_timeout=1)
    standby = await _client(stream)
    await consumer.ack(await consumer.fetch(1, group="g"))
    pin = consumer.pin("g")
    other = jet.runtime.spawn(standby.fetch(1, timeout=20, group="g"), "a pull")
    assert await consumer.fetch(1, timeout=2.5, group="g") == []
    assert (await consumer.info()).priority_groups[0].pinned_client_id == pin
    await jet.publish("s.a")
    assert _seqs(await consumer.fetch(1, timeout=5, group="g")) == [2]
    other.cancel()
    await asyncio.wait([other])


@case
async def iterating_keeps_to_the_group(jet: Jet) -> None:
    stream = await _stream(jet, 5)
    consumer = await _consumer(stream, "pinned_client")
    standby = await _client(stream)
    messages = consumer.messages(prefetch=2, group="g")
    assert (await anext(messages)).metadata.stream_seq == 1
    assert await standby.fetch(1, no_wait=True, group="g") == []
    assert [(await anext(messages)).metadata.stream_seq for _ in range(4)] == [2, 3, 4, 5]
    await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator


@only("server", "nats-server 2.15 does as if there were no failover")
async def failover_is_for_embedded_stores(jet: Jet) -> None:
    consumer = await _consumer(await _stream(jet, 1), "overflow")
    await fails(ConfigError, consumer.fetch(1, no_wait=True, group="g", failover=5))


@case
async def no_policy_may_be_written_out(jet: Jet) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(durable_name="c", priority_policy="none")
    assert (await consumer.info()).config.priority_policy == ""


@case
async def whose_pin_is_taken_is_asked_before_there_is_a_consumer(jet: Jet) -> None:
    await _stream(jet)
    await refused(10025, jet.backend.call(ConsumerUnpin(stream="S", name="c", group="")))
    await refused(10014, jet.backend.call(ConsumerUnpin(stream="S", name="c", group="g")))
