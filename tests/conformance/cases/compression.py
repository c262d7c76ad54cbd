"""Compressed streams: no reply shows it, and it can be switched on and off."""

from __future__ import annotations

from typing import Any

from pelton.connect import Jet
from tests.conformance.cases.table import case, refused

_TEXT = b"the quick brown fox jumps over the lazy dog. " * 40
_SIZE = 22 + 1 + len(_TEXT) + 8  # of that text on the subject "s"


@case
async def bytes_are_those_published(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], compression="s2")
    assert stream.config.compression == "s2"
    await jet.publish_batch([("s", _TEXT)] * 3)
    assert (await stream.info()).state.bytes == 3 * _SIZE
    await stream.delete_message(2)
    assert (await stream.info()).state.bytes == 2 * _SIZE
    assert await stream.purge() == 2
    assert (await stream.info()).state.bytes == 0


@case
async def limits_count_what_was_published(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], compression="s2", max_bytes=3 * _SIZE)
    await jet.publish_batch([("s", _TEXT)] * 5)
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.bytes) == (3, 3, 3 * _SIZE)
    await jet.create_stream("N", subjects=["n"], compression="s2", max_bytes=_SIZE, discard="new")
    await jet.publish("n", _TEXT)
    await refused(10077, jet.publish("n", b""))


@case
async def every_way_of_reading_returns_what_was_published(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], compression="s2", allow_direct=True)
    sent = [(f"s.{n % 2}", _TEXT[n:] if n % 3 else b"%d" % n) for n in range(6)]
    await jet.publish_batch(sent)
    await jet.publish("s.h", _TEXT, headers={"A": "b"})
    assert [(await stream.get_message(seq)).data for seq in range(1, 7)] == [data for _, data in sent]
    assert (await stream.get_last_message("s.1")).data == sent[5][1]
    assert (await stream.get_next_message("s.0", 2)).data == sent[2][1]
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.0")
    assert [message.data for message in await consumer.fetch(9)] == [data for subject, data in sent if subject == "s.0"]
    message = await stream.get_last_message("s.h")
    assert (message.data, b"A: b" in message.hdrs) == (_TEXT, True)


@case
async def it_is_switched_on_and_off(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    modes: list[Any] = ["s2", "none", "s2"]
    for mode in modes:
        await jet.publish("s", _TEXT)
        assert (await jet.update_stream("S", compression=mode)).config.compression == mode
    await jet.publish("s", _TEXT)
    assert [(await stream.get_message(seq)).data for seq in range(1, 5)] == [_TEXT] * 4
    assert (await stream.info()).state.bytes == 4 * _SIZE


@case
async def in_memory_too(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], compression="s2", storage="memory")
    await jet.publish("s", _TEXT)
    assert (await stream.get_message(1)).data == _TEXT
