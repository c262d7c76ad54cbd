"""Removing a message before anybody works on it, and storing another in the same transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

import pelton
from pelton.api import AckRejectedError, MsgWithdraw, NoStreamForSubjectError, Outgoing
from pelton.testing import manual_runtime

NOTE = Outgoing("notes.1", b"withdrawn")


async def ready(jet: pelton.Jet, per_subject: int = 0) -> pelton.Consumer:
    await jet.create_stream("notes", subjects=["notes.>"])
    work = await jet.create_stream("work", subjects=["work.>"], retention="workqueue")
    for number in range(3):
        await jet.publish("work.a", str(number).encode())
    return await work.create_consumer(durable_name="c", ack_wait=10, max_ack_pending_per_subject=per_subject)


async def withdrawn(jet: pelton.Jet, seq: int) -> str:
    return (await jet.backend.call(MsgWithdraw(stream="work", seq=seq, publish=(NOTE,)))).state


async def notes(jet: pelton.Jet) -> int:
    return (await (await jet.stream("notes")).info()).state.messages


@pytest.mark.parametrize("per_subject", [0, 1])
async def test_what_nobody_holds_is_removed(per_subject: int) -> None:
    async with pelton.open("memory:", runtime=(runtime := manual_runtime())) as jet:
        consumer = await ready(jet, per_subject)
        [first] = await consumer.fetch(1)
        assert await withdrawn(jet, first.metadata.stream_seq) == "held"
        assert await notes(jet) == 0
        assert await withdrawn(jet, 2) == "withdrawn"
        assert await withdrawn(jet, 2) == "missing"
        assert await withdrawn(jet, 9) == "missing"
        assert await notes(jet) == 1
        await first.nak(delay=60)
        assert await withdrawn(jet, 1) == "withdrawn"
        [third] = await consumer.fetch(1)
        assert third.data == b"2"
        runtime.clock.advance(11)
        assert await withdrawn(jet, 3) == "withdrawn"
        with pytest.raises(AckRejectedError):
            await third.ack()
        info = await consumer.info()
        assert (info.num_pending, info.num_ack_pending, await notes(jet)) == (0, 0, 3)


async def test_nothing_is_removed_if_a_message_is_refused(tmp_path: Path) -> None:
    async with pelton.open(str(tmp_path / "a.pelton"), sync="off") as jet:
        await ready(jet)
        with pytest.raises(NoStreamForSubjectError):
            await jet.backend.call(MsgWithdraw(stream="work", seq=1, publish=(Outgoing("nobody", b""),)))
        assert (await (await jet.stream("work")).info()).state.messages == 3
