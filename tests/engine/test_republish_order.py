"""Republished messages on their way into other streams: in order, through transactions, and in cycles."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pelton
from pelton.engine.salvage import recount


async def _subjects(stream: pelton.Stream) -> list[str]:
    state = (await stream.info()).state
    return [(await stream.get_message(seq)).subject for seq in range(state.first_seq, state.last_seq + 1)]


async def test_publishes_of_one_round_and_of_one_transaction_are_in_order() -> None:
    async with pelton.open("memory:") as jet:
        await jet.create_stream("s", subjects=["s.*"], republish={"src": "s.*", "dest": "t.{{wildcard(1)}}"})
        told = await jet.create_stream("t", subjects=["t.*"])
        await asyncio.gather(*(jet.publish(subject) for subject in ("s.1", "t.2", "s.3", "s.4", "t.5")))
        async with jet.transaction() as tx:
            await tx.publish("s.6")
            await tx.publish("t.7")
            await tx.publish_batch([("s.8", b""), ("t.9", b"")])
        assert await _subjects(told) == [f"t.{number}" for number in range(1, 10)]


async def test_a_circle_ends_and_all_of_it_is_there_after_opening_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        there = await jet.create_stream("s", subjects=["s.*"], republish={"src": "s.*", "dest": "t.{{wildcard(1)}}"})
        back = await jet.create_stream("t", subjects=["t.*"], republish={"src": "t.*", "dest": "s.{{wildcard(1)}}"})
        await jet.publish_batch([("s.1", b""), ("t.2", b""), ("s.3", b"")])
        held = [await _subjects(stream) for stream in (there, back)]
        assert {"s.1", "s.2", "s.3"} == set(held[0])
        assert held[1][:2] == ["t.1", "t.2"]
    async with pelton.open(path) as jet:
        assert [await _subjects(await jet.stream(name)) for name in "st"] == held
    assert recount(str(path)) == []
