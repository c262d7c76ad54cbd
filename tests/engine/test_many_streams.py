"""Many streams in one store: making or deleting one costs the same however many there are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pelton
from pelton.engine.salvage import recount
from pelton.engine.session.registry import Registry


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often all streams were read."""
    found: list[int] = []
    load = Registry._load

    def counted(self: Registry, version: int) -> None:
        found.append(version)
        load(self, version)

    monkeypatch.setattr(Registry, "_load", counted)
    return found


async def test_the_others_are_not_read_again(tmp_path: Path, loads: list[int]) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("first", subjects=["first.>"])
        loads.clear()
        await asyncio.gather(*(jet.create_stream(f"s{n}", subjects=[f"s{n}.>"]) for n in range(20)))
        await jet.create_stream(
            "last", subjects=["last.>"], retention="interest", republish={"src": ">", "dest": "r.>"}
        )
        for name in ("first", "s3", "last"):
            await (await jet.stream(name)).create_consumer(durable_name="c")
            await jet.publish(f"{name}.1", b"")
        await asyncio.gather(*(jet.delete_stream(f"s{n}") for n in range(10)))
        assert loads == []
    assert recount(str(path)) == []


async def test_another_process_sees_what_was_made_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.create_stream("s", subjects=["s.>"])
        assert (await other.publish("s.1", b"")).stream == "s"
        await jet.delete_stream("s")
        with pytest.raises(pelton.PeltonError):
            await other.publish("s.1", b"")
        await other.create_stream("t", subjects=["s.>"])
        assert (await jet.publish("s.1", b"")).stream == "t"


async def test_subjects_of_a_deleted_stream_are_free_again(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        for round in range(3):
            await jet.create_stream("s", subjects=["a.*.c", "b.>"])
            with pytest.raises(pelton.ApiError, match="overlap"):
                await jet.create_stream("t", subjects=["a.b.*"])
            assert (await jet.publish("a.b.c", b"")).seq == 1
            await jet.delete_stream("s")
            await jet.create_stream("t", subjects=["a.b.*"])
            assert (await jet.publish("a.b.c", b"")).stream == "t", round
            await jet.delete_stream("t")


async def test_a_source_that_is_made_later_is_followed(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        taker = await jet.create_stream("taker", sources=[{"name": "origin"}])
        for _ in range(2):
            await jet.create_stream("origin")
            await jet.publish("origin", b"1")
            assert (await taker.get_last_message("origin")).data == b"1"
            await jet.delete_stream("origin")


async def test_what_comes_to_nothing_is_forgotten(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        results = await asyncio.gather(
            jet.create_stream("s", subjects=["s"]),
            jet.create_stream("t", subjects=["s"]),
            jet.create_stream("u", subjects=["u"]),
            return_exceptions=True,
        )
        assert [isinstance(result, pelton.ApiError) for result in results] == [False, True, False]
        assert (await jet.publish("s", b"")).stream == "s"
        assert (await jet.publish("u", b"")).stream == "u"
