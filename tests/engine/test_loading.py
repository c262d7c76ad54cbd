"""Streams and consumers are made when they are used, and of what others change only that is read again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.engine.engine import Engine
from pelton.engine.salvage import recount
from pelton.engine.session import catalogue
from pelton.engine.session.registry import Registry, Routes
from pelton.subjects import SubjectIndex
from pelton.testing import ManualRuntime, manual_runtime
from tests.storage.stores import raw

_MANY = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pelton"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often everything was read."""
    found: list[int] = []
    load = Registry._load

    def counted(self: Registry, version: int) -> None:
        found.append(version)
        load(self, version)

    monkeypatch.setattr(Registry, "_load", counted)
    return found


def registry_of(jet: pelton.Jet) -> Registry:
    engine = jet.backend
    assert isinstance(engine, Engine)
    return engine.session.registry


async def _many(path: Path) -> None:
    async with pelton.open(path) as jet:
        for number in range(_MANY):
            schedules = {"allow_msg_schedules": True} if number % 2 else {"retention": "interest"}
            stream = await jet.create_stream(f"s{number}", subjects=[f"s{number}.>"], **schedules)
            for name in ("c", "d"):
                await stream.create_consumer(durable_name=name)


async def test_only_what_is_used_is_made(path: Path) -> None:
    await _many(path)
    async with pelton.open(path) as jet:
        registry = registry_of(jet)
        await jet.publish("s7.x", b"1")
        assert set(registry.streams.made) == {"s7"}
        assert not registry.consumers.by_name.made
        assert [message.data for message in await (await (await jet.stream("s7")).consumer("c")).fetch(1)] == [b"1"]
        assert set(registry.consumers.by_name.made) == {("s7", "c")}
        # One with interest retention has to ask all of its consumers.
        await jet.publish("s8.x", b"1")
        assert set(registry.consumers.by_name.made) == {("s7", "c"), ("s8", "c"), ("s8", "d")}
        assert len(await jet.stream_names()) == _MANY
        assert await jet.stream_names("s9.*") == ["s9"]
        assert set(registry.streams.made) == {"s7", "s8"}
        assert (await (await jet.stream("s9")).info()).state.consumer_count == 2
        assert await (await jet.stream("s9")).consumer_names() == ["c", "d"]
        assert ("s9", "c") not in registry.consumers.by_name.made


async def test_only_what_another_has_changed_is_read(path: Path, loads: list[int]) -> None:
    await _many(path)
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.publish("s1.x", b"")
        stream = await other.stream("s1")
        loads.clear()
        await stream.create_consumer(durable_name="e", filter_subject="s1.y", max_ack_pending=5)
        await jet.publish("s1.y", b"1")
        mine = await (await jet.stream("s1")).consumer("e")
        (message,) = await mine.fetch(1)
        await stream.create_consumer(durable_name="e", filter_subject="s1.z", max_ack_pending=5)
        assert (await mine.info()).config.filter_subject == "s1.z"
        await message.ack()
        await (await stream.consumer("e")).reset()
        await stream.delete_consumer("e")
        with pytest.raises(pelton.ApiError, match="consumer not found"):
            await mine.info()
        await other.create_stream("new", subjects=["new"])
        assert (await jet.publish("new", b"")).stream == "new"
        await other.update_stream("new", subjects=["newer"])
        assert (await jet.publish("newer", b"")).seq == 2
        with pytest.raises(pelton.PeltonError):
            await jet.publish("new", b"")
        await other.delete_stream("new")
        await other.create_stream("new", subjects=["new"])
        assert (await jet.publish("new", b"")).seq == 1
        assert loads == []
        assert set(registry_of(jet).streams.made) == {"s1", "new"}
    assert recount(str(path)) == []


async def test_sources_and_republishing_that_another_adds_are_followed(path: Path, loads: list[int]) -> None:
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.create_stream("origin")
        await jet.create_stream("copies", subjects=["copies.>"])
        await jet.publish("origin", b"1")
        loads.clear()
        taker = await other.create_stream("taker", sources=[{"name": "origin"}])
        await jet.publish("origin", b"2")
        assert (await taker.info()).state.messages == 2
        await other.update_stream("origin", subjects=["origin"], republish={"src": "origin", "dest": "copies.1"})
        await jet.publish("origin", b"3")
        assert (await (await jet.stream("copies")).get_last_message("copies.1")).data == b"3"
        await other.delete_stream("taker")
        await other.update_stream("origin", republish=None)
        await jet.publish("origin", b"4")
        assert (await (await jet.stream("copies")).info()).state.messages == 1
        assert len(loads) == 0
    assert recount(str(path)) == []


async def test_all_is_read_if_it_is_unknown_what_has_changed(path: Path, loads: list[int]) -> None:
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.create_stream("s")
        await other.publish("s", b"")
        loads.clear()
        await jet.create_stream("t")
        with raw(path) as connection:
            # As releases do that leave no note.
            connection.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
        assert (await other.publish("t", b"")).stream == "t"
        assert loads


async def test_all_is_read_if_more_has_changed_than_is_kept(
    path: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_KEPT", 4)
    async with pelton.open(path) as jet, pelton.open(path) as other:
        for count, expected in ((4, 0), (5, 1)):
            await jet.stream_names()
            await other.stream_names()
            loads.clear()
            # In one transaction, so that the other does not see some of them earlier.
            await asyncio.gather(*(jet.create_stream(f"s{count}{number}") for number in range(count)))
            assert (await other.publish(f"s{count}0", b"")).seq == 1
            assert len(loads) == expected


async def test_what_is_rolled_back_is_read_again_only_if_it_was_a_stream(path: Path, loads: list[int]) -> None:
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("s", retention="interest")
        await stream.create_consumer(durable_name="c")
        with suppress(ZeroDivisionError):
            async with jet.transaction() as transaction:
                await transaction.publish("s", b"lost")
                raise ZeroDivisionError
        assert (await jet.publish("s", b"")).seq == 1
        loads.clear()
        with suppress(ZeroDivisionError):
            async with jet.transaction() as transaction:
                await transaction.publish("s", b"lost")
                raise ZeroDivisionError
        assert (await jet.publish("s", b"kept")).seq == 2
        assert loads == []
        results = await asyncio.gather(
            jet.create_stream("t", subjects=["t"]), jet.create_stream("u", subjects=["t"]), return_exceptions=True
        )
        assert [isinstance(result, pelton.ApiError) for result in results] == [False, True]
        assert (await jet.publish("t", b"")).stream == "t"
    assert recount(str(path)) == []


async def test_time_passes_in_streams_that_nobody_uses(path: Path) -> None:
    runtime: ManualRuntime = manual_runtime()
    async with pelton.open(path, runtime=runtime) as jet:
        for name in ("idle", "plan", "aged"):
            await jet.create_stream(
                name,
                subjects=[f"{name}.*"],
                allow_msg_schedules=name == "plan",
                max_age=60 if name == "aged" else 0,
                subject_delete_marker_ttl=3600 if name == "aged" else 0,
            )
        await (await jet.stream("idle")).create_consumer(name="goes", inactive_threshold=10)
        await jet.schedule("plan.it", b"now", target="plan.target", delay=30)
        await jet.publish("aged.x", b"")
    async with pelton.open(path, runtime=runtime) as jet:
        registry = registry_of(jet)
        runtime.clock.advance(1)
        await asyncio.sleep(0)
        assert "plan" not in registry.streams.made
        runtime.clock.advance(40)
        while (await (await jet.stream("plan")).info()).state.messages != 1:
            await asyncio.sleep(0)
        assert (await (await jet.stream("plan")).get_last_message("plan.target")).data == b"now"
        assert await (await jet.stream("idle")).consumer_names() == []
        runtime.clock.advance(60)
        while "Nats-Marker-Reason" not in (await (await jet.stream("aged")).get_last_message("aged.x")).headers:
            await asyncio.sleep(0)


async def test_a_message_replaces_a_schedule_that_another_process_has_made(path: Path) -> None:
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
        await jet.publish("s.a", b"")
        await other.schedule("s.plan", b"", target="s.x", delay=3600)
        await jet.publish("s.plan", b"instead")
        async with jet.transaction() as transaction:
            assert await transaction.sql("SELECT count(*) FROM schedules") == [(0,)]


def _filter(random: Random) -> str:
    tokens = [random.choice("abc*") for _ in range(random.randint(1, 4))]
    return ".".join([*tokens[:-1], ">"] if random.random() < 0.3 else tokens)


def test_routes_that_are_not_in_the_index_yet_are_found() -> None:
    random = Random(1)
    for _ in range(2_000):
        routes, index = Routes({}), SubjectIndex[str]()
        there: list[tuple[str, str]] = []
        for number in range(6):
            drawn, choice = _filter(random), random.random()
            if choice < 0.6:
                routes.add(str(number), [drawn])
                index.insert(drawn, str(number))
                there.append((drawn, str(number)))
            elif choice < 0.8 and there:
                gone, stream = there.pop()
                routes.remove(stream, [gone])
                index.remove(gone, stream)
            else:
                assert routes.overlapping(drawn) == index.overlapping(drawn)
        for subject in ("a", "a.b", "b.a.c", "c.c.c.c"):
            assert routes.overlapping(subject) == set(index.match(subject))
