"""The last message of each subject, without payloads: how buckets list their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

import pelton
from pelton.api import LastHeaders, StreamLastHeaders, StreamLastMessages
from pelton.jet.stream import last_of_each
from pelton.testing import manual_runtime


async def heads(jet: pelton.Jet, *filters: str, limit: int = 1000) -> list[tuple[str, int]]:
    """Return all pages of them."""
    found: list[LastHeaders] = []
    after = ""
    while True:
        request = StreamLastHeaders(stream="S", filters=filters, after=after, limit=limit)
        page = (await jet.backend.call(request)).heads
        if not page:
            return [(head.subject, head.seq) for head in found]
        assert len(page) <= limit
        found += page
        after = page[-1].subject


async def filled(jet: pelton.Jet, **config: object) -> pelton.Stream:
    stream = await jet.create_stream("S", subjects=["s.>"], **config)
    for subject in ("s.c", "s.a", "s.b.1", "s.c", "s.b.2"):
        await jet.publish(subject, b"data")
    return stream


async def test_pages_follow_each_other() -> None:
    async with pelton.open("memory:") as jet:
        await filled(jet)
        everything = [("s.a", 2), ("s.b.1", 3), ("s.b.2", 5), ("s.c", 4)]
        for limit in (1, 2, 3, 4, 1000):
            assert await heads(jet, "s.>", limit=limit) == everything
        assert await heads(jet, "s.b.*", "s.c", limit=1) == [("s.b.1", 3), ("s.b.2", 5), ("s.c", 4)]
        assert await heads(jet, "s.none") == []


async def test_what_was_removed_shows_what_is_below() -> None:
    async with pelton.open("memory:") as jet:
        stream = await filled(jet)
        await stream.delete_message(4)
        assert await heads(jet, "s.c") == [("s.c", 1)]
        await stream.delete_message(1)
        assert await heads(jet, "s.c") == []


async def test_headers_come_with_them() -> None:
    async with pelton.open("memory:") as jet:
        await filled(jet)
        await jet.publish("s.a", headers={"KV-Operation": "DEL"})
        (page,) = ((await jet.backend.call(StreamLastHeaders(stream="S", filters=("s.a", "s.c")))).heads,)
        assert [(head.subject, bool(head.hdrs)) for head in page] == [("s.a", True), ("s.c", False)]


async def test_another_process_and_a_transaction_see_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as one, pelton.open(path) as two:
        await filled(one)
        assert len(await heads(two, "s.>")) == 4
        await one.publish("s.d")
        assert len(await heads(two, "s.>")) == 5
        async with two.transaction() as tx:
            await tx.publish("s.e")
            assert len(await heads(two, "s.>")) == 6


async def test_what_is_past_its_age_is_not_there(tmp_path: Path) -> None:
    manual = manual_runtime()
    async with pelton.open(tmp_path / "a.pelton", runtime=manual) as jet:
        await filled(jet, max_age=10, duplicate_window=10)
        manual.clock.advance(11)
        assert await heads(jet, "s.>") == []


async def test_there_must_be_a_stream() -> None:
    async with pelton.open("memory:") as jet:
        with pytest.raises(pelton.StreamNotFoundError):
            await heads(jet, "s.>")


async def test_payloads_come_with_them_and_by_how_much_the_clock_has_jumped() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        await filled(jet, max_age=10**6)
        runtime.clock.set_wall(runtime.clock.now() + 3600 * 10**9)
        await jet.publish("s.d", b"later")
        found = await last_of_each(jet.backend, "S", "s.*")
        assert [(one.subject, one.seq, one.data) for one, _ in found] == [
            ("s.a", 2, b"data"),
            ("s.c", 4, b"data"),
            ("s.d", 6, b"later"),
        ]
        assert [round(jumped / 1e9) for _, jumped in found] == [3600, 3600, 0]
        pages = StreamLastMessages(stream="S", filters=("s.>",), limit=1)
        assert [one.subject for one in (await jet.backend.call(pages)).messages] == ["s.a"]
