"""Removing a message before anybody works on it, and storing another in the same transaction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pelton
from pelton.api import AckRejectedError, NoStreamForSubjectError, Outgoing
from pelton.api.tracing import Replacement
from pelton.testing import manual_runtime

NOTE = Outgoing("notes.1", b"withdrawn")


async def ready(jet: pelton.Jet, per_subject: int = 0) -> pelton.Consumer:
    await jet.create_stream("notes", subjects=["notes.>"])
    work = await jet.create_stream("work", subjects=["work.>"], retention="workqueue")
    for number in range(3):
        await jet.publish("work.a", str(number).encode())
    return await work.create_consumer(durable_name="c", ack_wait=10, max_ack_pending_per_subject=per_subject)


async def withdrawn(jet: pelton.Jet, seq: int) -> str:
    answer = await jet.backend.withdraw("work", {seq: Replacement((NOTE,))})
    return "withdrawn" if answer.sequences == (seq,) else "held" if answer.held == (seq,) else "missing"


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


async def test_of_many_those_that_nobody_holds_are_removed_together() -> None:
    async with pelton.open("memory:", runtime=manual_runtime()) as jet:
        consumer = await ready(jet)
        [held, given_back] = await consumer.fetch(2)
        await given_back.nak(delay=60)
        many = {seq: Replacement((Outgoing(f"notes.{seq}", b""),)) for seq in (9, 3, 2, 1)}
        answer = await jet.backend.withdraw("work", many)
        assert (answer.sequences, answer.held, [ack.seq for ack in answer.acks]) == ((2, 3), (1,), [1, 2])
        stored = await (await jet.stream("notes")).info(subjects_filter=">")
        assert stored.state.subjects == {"notes.2": 1, "notes.3": 1}
        await held.ack()
        info = await consumer.info()
        assert (info.num_pending, info.num_ack_pending) == (0, 0)


@pytest.mark.parametrize("count", [1, 20])
async def test_nothing_is_removed_or_stored_if_a_message_is_refused(tmp_path: Path, count: int) -> None:
    async with pelton.open(str(tmp_path / "a.pelton"), sync="off") as jet:
        await ready(jet)
        refused = (*[NOTE] * count, Outgoing("nobody", b""))
        withdrawing = jet.backend.withdraw("work", {1: Replacement(()), 2: Replacement(refused)})
        beside = asyncio.gather(jet.publish("notes.2", b""), withdrawing, return_exceptions=True)
        assert isinstance((await beside)[1], NoStreamForSubjectError)
        assert (await (await jet.stream("work")).info()).state.messages == 3
        assert await notes(jet) == 1
