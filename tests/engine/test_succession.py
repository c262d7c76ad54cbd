"""One message per subject, written in groups: each replaces the previous one, and the counts stay right."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import pelton
from pelton.engine.salvage import recount


@pytest.mark.parametrize("seed", range(5))
async def test_groups_leave_the_last_of_each_subject(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = tmp_path / "a.pelton"
    async with pelton.open(path, sync="off") as jet:
        stream = await jet.create_stream("S", subjects=["s.*"], max_msgs_per_subject=1)
        last: dict[str, int] = {}
        for _ in range(40):
            subjects = [f"s.{draw.randrange(30)}" for _ in range(draw.choice([1, 3, 4, 20, 60]))]
            for subject, ack in zip(
                subjects, await asyncio.gather(*(jet.publish(subject) for subject in subjects)), strict=True
            ):
                last[subject] = max(ack.seq, last.get(subject, 0))
            if draw.random() < 0.3:
                gone = draw.choice(sorted(last))
                await stream.delete_message(last.pop(gone))
        info = await stream.info(subjects_filter=">")
        assert info.state.subjects == dict.fromkeys(last, 1)
        assert (info.state.messages, info.state.first_seq) == (len(last), min(last.values()))
        for subject, seq in last.items():
            assert (await stream.get_last_message(subject)).seq == seq
    assert recount(str(path)) == []


async def test_deletes_within_the_group(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, sync="off") as jet:
        stream = await jet.create_stream("S", subjects=["s.*"], max_msgs_per_subject=1)
        await jet.publish_batch([(f"s.{number}", b"1") for number in range(8)])
        async with jet.transaction() as tx:
            acks = [await tx.publish(f"s.{number}", b"2") for number in range(8)]
        assert [(await stream.get_last_message(f"s.{number}")).seq for number in range(8)] == [ack.seq for ack in acks]
        again = [jet.publish(f"s.{number}", b"%d" % turn) for turn in range(2) for number in range(8)]
        await asyncio.gather(*again, stream.delete_message(acks[-1].seq), return_exceptions=True)
        assert (await stream.info()).state.messages == 8
        assert {(await stream.get_last_message(f"s.{number}")).data for number in range(8)} == {b"1"}
    assert recount(str(path)) == []
