"""What may be removed from a stream: sealed streams, denied deletes and purges."""

from __future__ import annotations

from typing import Any

from pelton.api import Duration
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import left
from tests.conformance.cases.table import case, refused


async def _sealed(jet: Jet, **config: Any) -> Stream:
    """Return a sealed stream of three messages."""
    await jet.create_stream("S", subjects=["s.*"], **config)
    await jet.publish_batch([("s.a", b"1"), ("s.b", b"2"), ("s.a", b"3")])
    return await jet.update_stream("S", sealed=True)


@case
async def a_stream_is_sealed_by_a_change_only(jet: Jet) -> None:
    error = await refused(10052, jet.create_stream("S", subjects=["s"], sealed=True))
    assert error.description == "stream configuration for create can not be sealed"
    await jet.create_stream("S", subjects=["s"])
    assert (await jet.update_stream("S", sealed=True)).config.sealed


@case
async def sealing_changes_what_would_change_it(jet: Jet) -> None:
    config = (await _sealed(jet, max_age=600, allow_rollup_hdrs=True)).config
    assert (config.max_age, config.discard, config.allow_rollup_hdrs) == (Duration(0), "new", False)
    assert (config.deny_delete, config.deny_purge) == (True, True)


@case
async def nothing_goes_into_a_sealed_stream(jet: Jet) -> None:
    stream = await _sealed(jet)
    error = await refused(10109, jet.publish("s.a"))
    assert error.code == 400
    await refused(10109, jet.publish("s.a", msg_id="x", expected_stream="other"))
    assert (await stream.info()).state.last_seq == 3


@case
async def nothing_comes_out_of_a_sealed_stream(jet: Jet) -> None:
    stream = await _sealed(jet)
    await refused(10109, stream.delete_message(1))
    await refused(10109, stream.purge())
    await refused(10109, stream.purge(filter="s.a", keep=1))
    assert (await stream.info()).state.messages == 3
    assert (await stream.get_message(2)).data == b"2"


@case
async def a_sealed_stream_can_be_consumed_and_deleted(jet: Jet) -> None:
    stream = await _sealed(jet)
    consumer = await stream.create_consumer(durable_name="c")
    assert [message.data for message in await consumer.fetch(5)] == [b"1", b"2", b"3"]
    await stream.delete()
    assert await jet.stream_names() == []


@case
async def acks_still_empty_a_sealed_work_queue(jet: Jet) -> None:
    stream = await _sealed(jet, retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c")
    (message,) = await consumer.fetch(1)
    await message.ack_sync()
    await left(stream, 2)


@case
async def a_lowered_limit_takes_nothing_from_a_sealed_stream(jet: Jet) -> None:
    await _sealed(jet)
    stream = await jet.update_stream("S", max_msgs=1, max_bytes=10, description="kept")
    assert ((await stream.info()).state.messages, stream.config.description) == (3, "kept")


@case
async def a_seal_is_for_ever(jet: Jet) -> None:
    await _sealed(jet)
    error = await refused(10052, jet.update_stream("S", sealed=False))
    assert error.description == "stream configuration update can not unseal a sealed stream"
    error = await refused(10052, jet.update_stream("S", deny_delete=False))
    assert error.description == "stream configuration update can not cancel deny message deletes"
    assert (await jet.update_stream("S", discard="old", max_age=60, duplicate_window=60)).config.discard == "new"


@case
async def deletes_can_be_denied(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], deny_delete=True)
    await jet.publish_batch([("s", b"")] * 3)
    error = await refused(10057, stream.delete_message(1))
    assert error.description == "message delete not permitted"
    await refused(10057, stream.delete_message(99))
    assert await stream.purge(keep=1) == 2


@case
async def purges_can_be_denied(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], deny_purge=True)
    await jet.publish_batch([("s", b"")] * 3)
    error = await refused(10110, stream.purge())
    assert (error.code, error.description) == (500, "stream purge not permitted")
    await refused(10003, stream.purge(seq=2, keep=1))
    await stream.delete_message(1)
    assert (await stream.info()).state.messages == 2


@case
async def what_is_denied_stays_denied(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.update_stream("S", deny_delete=True, deny_purge=True)
    error = await refused(10052, jet.update_stream("S", deny_delete=False))
    assert error.description == "stream configuration update can not cancel deny message deletes"
    error = await refused(10052, jet.update_stream("S", deny_purge=False))
    assert error.description == "stream configuration update can not cancel deny purge"


@case
async def limits_still_remove_where_purges_are_denied(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], deny_delete=True, deny_purge=True, max_msgs=2)
    await jet.publish_batch([("s", b"")] * 5)
    assert (await stream.info()).state.first_seq == 4
