"""Usage and limits of an account: account information, and how limits apply."""

from __future__ import annotations

from typing import Final

from pelton.api import AccountLimits, LimitError
from pelton.connect import Jet
from tests.conformance.cases.table import case, refused, under

_KIB: Final = 1024
_FEW: Final = AccountLimits(
    max_memory=64 * _KIB,
    max_storage=1024 * _KIB,
    max_streams=3,
    max_consumers=2,
    max_ack_pending=10,
    memory_max_stream_bytes=32 * _KIB,
    storage_max_stream_bytes=600 * _KIB,
)
_STRICT: Final = AccountLimits(max_memory=0, max_storage=1024 * _KIB, max_bytes_required=True)


@case
async def use_is_told_by_storage(jet: Jet) -> None:
    empty = await jet.account_info()
    assert (empty.memory, empty.storage, empty.streams, empty.consumers) == (0, 0, 0, 0)
    on_disk = await jet.create_stream("F", subjects=["f"])
    in_memory = await jet.create_stream("M", subjects=["m"], storage="memory")
    await jet.publish_batch([("f", b"12345"), ("m", b"123"), ("m", b"")])
    await on_disk.create_consumer(durable_name="c")
    info = await jet.account_info()
    assert info.storage == (await on_disk.info()).state.bytes == 30 + 1 + 5
    assert info.memory == (await in_memory.info()).state.bytes == 16 + 1 + 3 + 16 + 1
    assert (info.streams, info.consumers) == (2, 1)
    await in_memory.purge()
    await on_disk.delete()
    info = await jet.account_info()
    assert (info.memory, info.storage, info.streams, info.consumers) == (0, 0, 1, 0)


@case
async def reserved_is_what_streams_may_grow_to(jet: Jet) -> None:
    await jet.create_stream("A", max_bytes=1000)
    await jet.create_stream("B", max_bytes=500)
    await jet.create_stream("C", max_bytes=300, storage="memory")
    await jet.create_stream("D")
    info = await jet.account_info()
    assert (info.reserved_storage, info.reserved_memory) == (1500, 300)
    await jet.update_stream("A", max_bytes=200)
    await jet.delete_stream("C")
    info = await jet.account_info()
    assert (info.reserved_storage, info.reserved_memory) == (700, 0)


@case
async def requests_and_errors_are_counted(jet: Jet) -> None:
    before = (await jet.account_info()).api
    await jet.create_stream("S")
    await refused(10059, jet.stream("NONE"))
    await refused(10058, jet.create_stream("S", subjects=["other"]))
    await jet.publish("S")
    after = (await jet.account_info()).api
    assert (after.total - before.total, after.errors - before.errors) == (4, 2)


@case
async def without_limits_all_are_open(jet: Jet) -> None:
    assert (await jet.account_info()).limits == AccountLimits()


@under(_FEW)
async def limits_are_told(jet: Jet) -> None:
    assert (await jet.account_info()).limits == _FEW


@under(_FEW)
async def no_more_streams_than_allowed(jet: Jet) -> None:
    for name in "ABC":
        await jet.create_stream(name)
    error = await refused(10027, jet.create_stream("D"))
    assert isinstance(error, LimitError)
    await refused(10027, jet.create_stream("D", subjects=["A"], max_age=0.001))
    await jet.create_stream("A")
    await jet.delete_stream("B")
    await jet.create_stream("D")


@under(_FEW)
async def no_stream_larger_than_allowed(jet: Jet) -> None:
    await refused(10122, jet.create_stream("S", max_bytes=601 * _KIB))
    await refused(10122, jet.create_stream("S", max_bytes=33 * _KIB, storage="memory"))
    await jet.create_stream("S", max_bytes=600 * _KIB)
    await refused(10122, jet.update_stream("S", max_bytes=601 * _KIB))


@under(_FEW)
async def no_more_reserved_than_there_is(jet: Jet) -> None:
    await jet.create_stream("A", max_bytes=600 * _KIB)
    await refused(10047, jet.create_stream("B", max_bytes=425 * _KIB))
    await jet.create_stream("B", max_bytes=300 * _KIB)
    await refused(10047, jet.update_stream("B", max_bytes=425 * _KIB))
    await jet.update_stream("B", max_bytes=424 * _KIB)
    await refused(10047, jet.create_stream("C"))
    await jet.update_stream("B", max_bytes=100 * _KIB)
    await jet.create_stream("C")


@under(_FEW)
async def no_more_stored_than_there_is(jet: Jet) -> None:
    stream = await jet.create_stream("M", storage="memory")
    await jet.publish_batch([("M", bytes(30_000))] * 2)
    error = await refused(10002, jet.publish("M", bytes(30_000)))
    assert (error.code, isinstance(error, LimitError)) == (400, True)
    await jet.publish("M", bytes(4000))
    await jet.create_stream("F")
    await jet.publish("F", bytes(100_000))
    await stream.purge()
    await jet.publish("M", bytes(30_000))


@under(_FEW)
async def no_more_consumers_of_a_stream_than_allowed(jet: Jet) -> None:
    streams = [await jet.create_stream("A"), await jet.create_stream("B")]
    for stream in streams:
        for name in ("one", "two", "one"):
            await stream.create_consumer(durable_name=name)
        await refused(10026, stream.create_consumer(durable_name="three"))


@under(_FEW)
async def no_consumer_with_more_out_than_allowed(jet: Jet) -> None:
    stream = await jet.create_stream("S")
    assert (await stream.create_consumer(durable_name="a")).config.max_ack_pending == 10
    error = await refused(10121, stream.create_consumer(durable_name="b", max_ack_pending=11))
    assert error.description == "consumer max ack pending exceeds system limit of 10"
    assert (await stream.create_consumer(durable_name="b", max_ack_pending=7)).config.max_ack_pending == 7
    other = await jet.create_stream("T", consumer_limits={"max_ack_pending": 20})
    await refused(10121, other.create_consumer(durable_name="a"))


@under(_STRICT)
async def a_size_may_be_required(jet: Jet) -> None:
    await refused(10113, jet.create_stream("S"))
    await refused(10113, jet.create_stream("S", max_bytes=0))
    await jet.create_stream("S", max_bytes=1000)
    await refused(10113, jet.update_stream("S", max_bytes=-1))


@under(_STRICT)
async def memory_may_be_forbidden(jet: Jet) -> None:
    await refused(10028, jet.create_stream("S", max_bytes=10, storage="memory"))
