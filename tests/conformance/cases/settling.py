"""Results that are published together with the ack of their delivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Final

from pelton.api import AckRejectedError, NoStreamForSubjectError, Outgoing, Settled
from pelton.api.tracing import Replacement
from pelton.connect import Jet
from pelton.jet import Consumer, Message, Stream, ack_of
from tests.conformance.cases.eventually import eventually, left, pending, taken
from tests.conformance.cases.table import case, fails, only

Removal = Callable[[Jet, Stream], Awaitable[object]]

_LATE: Final = (
    "embedded, an ack that does not count refuses what comes with it; a server takes the messages, then the ack"
)


async def _deleted(jet: Jet, stream: Stream) -> None:
    await stream.delete_message(1)


async def _purged(jet: Jet, stream: Stream) -> None:
    await stream.purge(seq=2)


async def _taken_by_limits(jet: Jet, stream: Stream) -> None:
    await jet.publish(stream.name)


_REMOVALS: Final[list[tuple[str, Removal]]] = [
    *product(("limits", "workqueue", "interest"), (_deleted, _purged, _taken_by_limits))
]


async def _removed(jet: Jet, retention: str, removal: Removal) -> tuple[Consumer, Message]:
    """The first of two messages, held by a worker and removed from its stream."""
    stream = await jet.create_stream(f"{retention}{removal.__name__}", retention=retention, max_msgs=2)
    consumer = await stream.create_consumer(durable_name="c", ack_wait=60)
    await jet.publish_batch([(stream.name, b"1"), (stream.name, b"2")])
    [message] = await taken(consumer, 1)
    await removal(jet, stream)
    return consumer, message


async def _settle(jet: Jet, message: Message) -> None:
    d = message.delivered
    await jet.backend.settle([Outgoing("out", b"done")], d.stream, d.consumer, ack_of(d, "ack"))


async def _awaits(consumer: Consumer, acks: int) -> None:
    async def awaited() -> int:
        return (await consumer.info()).num_ack_pending

    await eventually(awaited, acks)


@case
async def with_the_ack_of_a_message_that_was_removed_results_are_stored(jet: Jet) -> None:
    out = await jet.create_stream("out")
    for stored, (retention, removal) in enumerate(_REMOVALS, 1):
        consumer, message = await _removed(jet, retention, removal)
        await _settle(jet, message)
        await left(out, stored)
        await _awaits(consumer, 0)


@case
async def they_are_stored_though_the_consumer_went_on_meanwhile(jet: Jet) -> None:
    out = await jet.create_stream("out")
    for stored, (retention, removal) in enumerate(_REMOVALS, 1):
        consumer, message = await _removed(jet, retention, removal)
        # It is no longer awaited, and others are delivered and settled.
        await _awaits(consumer, 0)
        [other] = await taken(consumer, 1)
        await other.ack()
        await message.in_progress()
        await _settle(jet, message)
        await left(out, stored)
        await _awaits(consumer, 0)


@case
async def of_many_deliveries_those_that_were_removed_count_as_well(jet: Jet) -> None:
    out = await jet.create_stream("out")
    stream = await jet.create_stream("S", retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=60)
    await jet.publish_batch([("S", b"")] * 12)
    messages = await taken(consumer, 12)
    await stream.purge(seq=5)
    await _awaits(consumer, 8)
    endings = [
        Settled([Outgoing("out", b"%d" % number)], ack_of(m.delivered, "ack")) for number, m in enumerate(messages)
    ]
    assert await jet.backend.settle_many(endings, "S", "c") == [None] * 12
    await left(out, 12)
    await left(stream, 0)


@case
async def a_delivery_is_settled_once(jet: Jet) -> None:
    out = await jet.create_stream("out", subjects=["out.>"])
    stream = await jet.create_stream("S", retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=60)
    await jet.publish_batch([("S", b"")] * 2)
    first, second = [ack_of(message.delivered, "ack") for message in await taken(consumer, 2)]
    await jet.backend.settle_once(Settled([Outgoing("out.done.1", b"")], first, "out.*.1"), "S", "c")
    late = Settled([Outgoing("out.failed.1", b"late")], first, "out.*.1")
    await fails(AckRejectedError, jet.backend.settle_once(late, "S", "c"))
    other = Settled([Outgoing("out.done.2", b"")], second, "out.*.2")
    refused, other_refused = await jet.backend.settle_many([late, other], "S", "c")
    assert isinstance(refused, AckRejectedError)
    assert other_refused is None
    await left(out, 2)
    await left(stream, 0)


@case
async def messages_are_withdrawn_for_others(jet: Jet) -> None:
    out = await jet.create_stream("out", subjects=["out.>"])
    stream = await jet.create_stream("S", retention="workqueue")
    await jet.publish_batch([("S", b"")] * 3)
    instead = Replacement([Outgoing("out.a", b""), Outgoing("out.done.1", b"")], "out.*.1")
    answer = await jet.backend.withdraw("S", {1: instead, 2: Replacement([Outgoing("out.b", b"")])})
    assert (answer.sequences, len(answer.acks)) == ((1, 2), 3)
    late = await jet.backend.withdraw("S", {1: Replacement([Outgoing("out.failed.1", b"")], "out.*.1")})
    assert (late.sequences, late.acks) == ((), ())
    await fails(NoStreamForSubjectError, jet.backend.withdraw("S", {3: Replacement([Outgoing("nobody", b"")])}))
    await left(out, 3)
    await left(stream, 1)


@case
async def an_ack_of_a_removed_message_settles_what_went_before(jet: Jet) -> None:
    stream = await jet.create_stream("S")
    consumer = await stream.create_consumer(durable_name="c", ack_policy="all")
    await jet.publish_batch([("S", b"")] * 4)
    messages = await taken(consumer, 4)
    await stream.delete_message(3)
    await messages[2].ack()
    await pending(consumer, 0, without_ack=1)


@only("engine", _LATE)
async def results_of_a_delivery_that_was_settled_or_replaced_are_refused(jet: Jet) -> None:
    out = await jet.create_stream("out")
    stream = await jet.create_stream("S", retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=60)
    await jet.publish_batch([("S", b"")] * 2)
    first, second = await taken(consumer, 2)
    await second.nak()
    [again] = await taken(consumer, 1)
    await stream.purge()
    await _awaits(consumer, 0)
    await first.ack()
    for message in (first, second):
        await fails(AckRejectedError, _settle(jet, message))
    await left(out, 0)
    await _settle(jet, again)
    await fails(AckRejectedError, _settle(jet, again))
    await left(out, 1)


@only("server", "a server delivers what is due anyway, and would take the messages of both; embedded, one is refused")
async def a_delivery_that_is_due_in_a_moment_is_left_alone(jet: Jet) -> None:
    out = await jet.create_stream("out")
    stream = await jet.create_stream("S", retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=60)
    await jet.publish_batch([("S", b"")] * 2)
    soon, later = await taken(consumer, 2)
    now = jet.runtime.clock.now()
    for message, due in ((soon, now + 500_000_000), (later, now + 60 * 10**9)):
        d = message.delivered
        settled = Settled((Outgoing("out", b"recalled"),), ack_of(d, "ack"), due=due)
        asked = jet.backend.settle_once(settled, d.stream, d.consumer)
        await (fails(AckRejectedError, asked) if message is soon else asked)
    await left(out, 1)
    await _awaits(consumer, 1)
