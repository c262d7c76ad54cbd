"""Conditions on filters: a publish that expects nothing under ``q.*.u1``."""

from __future__ import annotations

import pytest

import pelton
from pelton.api import WrongLastSequenceError

SUBJECTS = ["q.free", "q.free.>", "q.later.>", "q.key.>"]


async def expecting(jet: pelton.Jet, subject: str, subject_filter: str) -> int:
    """Publish if nothing matches the filter; return the last sequence that does."""
    try:
        await jet.publish(subject, b"", expected_last_subject_seq=0, expected_last_subject_seq_subject=subject_filter)
    except WrongLastSequenceError as error:
        return error.seq or 0
    return 0


async def test_a_message_anywhere_under_the_filter_counts() -> None:
    async with pelton.open("memory:") as jet:
        await jet.create_stream("q", subjects=SUBJECTS)
        assert await expecting(jet, "q.later.u1", "q.*.u1") == 0
        assert await expecting(jet, "q.free.u1", "q.*.u1") == 1
        await jet.publish("q.free.u1", b"")
        assert await expecting(jet, "q.later.u1", "q.*.u1") == 2
        assert await expecting(jet, "q.key.a.b.%.u1", "q.*.a.b.%.u1") == 0
        assert await expecting(jet, "q.later.a.b.%.u1", "q.*.a.b.%.u1") == 3
        stream = await jet.stream("q")
        await stream.delete_message(2)
        assert await expecting(jet, "q.free.u1", "q.*.u1") == 1
        await stream.delete_message(1)
        assert await expecting(jet, "q.free.u1", "q.*.u1") == 0


async def test_messages_that_an_earlier_configuration_took_count() -> None:
    async with pelton.open("memory:") as jet:
        await jet.create_stream("q", subjects=["q.>"])
        await jet.publish("q.old.u1", b"")
        await jet.update_stream("q", subjects=SUBJECTS)
        assert await expecting(jet, "q.free.u1", "q.*.u1") == 1
        await (await jet.stream("q")).purge(filter="q.old.>")
        assert await expecting(jet, "q.free.u1", "q.*.u1") == 0


@pytest.mark.parametrize("change", ["sources", "transform"])
async def test_messages_that_come_in_another_way_count(change: str) -> None:
    async with pelton.open("memory:") as jet:
        if change == "sources":
            await jet.create_stream("other", subjects=["q.other.>"])
            await jet.create_stream("q", subjects=SUBJECTS, sources=[{"name": "other"}])
            await jet.publish("q.other.u1", b"")
        else:
            moved = {"src": "q.free.*", "dest": "q.moved.{{wildcard(1)}}"}
            await jet.create_stream("q", subjects=SUBJECTS, subject_transform=moved)
            await jet.publish("q.free.u1", b"")
        assert await expecting(jet, "q.later.u1", "q.*.u1") == 1
