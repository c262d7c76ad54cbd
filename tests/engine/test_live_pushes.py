"""Push consumers receive every message, even those that a limit removes in the transaction that stores the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.engine import pushes
from pelton.testing import manual_runtime

Seen = list[tuple[str, bytes | None] | None]
HERE = ("same", "memory")


@asynccontextmanager
async def _openers(place: str, path: Path) -> AsyncIterator[tuple[pelton.Jet, pelton.Jet]]:
    """Open a store for a writer and a watcher: the same opener, or two of one file."""
    async with pelton.open("memory:" if place == "memory" else path / "s.pelton", sync="off") as writer:
        if place in HERE:
            yield writer, writer
            return
        async with pelton.open(path / "s.pelton", sync="off") as watcher:
            yield writer, watcher


async def _until_end(bucket: pelton.Bucket[bytes], begun: asyncio.Event, **options: Any) -> Seen:
    seen: Seen = []
    async with asyncio.timeout(60), aclosing(bucket.watch(**options)) as entries:
        async for entry in entries:
            seen.append(entry and (entry.key, entry.value if entry.operation == "put" else None))
            if entry is None:
                begun.set()
            elif entry.key == "end":
                break
    return seen


async def _watched(watcher: pelton.Jet, **options: Any) -> asyncio.Task[Seen]:
    """Begin to watch the bucket; return the task, whose result is everything up to the key ``end``."""
    begun = asyncio.Event()
    task = asyncio.ensure_future(_until_end(await watcher.bucket("b"), begun, **options))
    await begun.wait()
    return task


@pytest.mark.parametrize("place", ["same", "memory", "other"])
@pytest.mark.parametrize("together", [False, True])
async def test_a_watcher_sees_every_change_of_a_key(place: str, together: bool, tmp_path: Path) -> None:
    async with _openers(place, tmp_path) as (writer, watcher):
        bucket = await writer.create_bucket("b")
        watching = await _watched(watcher)
        puts = [bucket.put("k", b"%d" % number) for number in range(200)]
        if together:
            await asyncio.gather(*puts)
        else:
            for put in puts:
                await put
        await bucket.put("end", b"")
        assert await watching == [None, *(("k", b"%d" % number) for number in range(200)), ("end", b"")]


@pytest.mark.parametrize("place", ["same", "other"])
async def test_deletes_purges_and_more_revisions_are_all_seen(place: str, tmp_path: Path) -> None:
    async with _openers(place, tmp_path) as (writer, watcher):
        bucket = await writer.create_bucket("b", history=3)
        await bucket.put("k", b"first")
        everything, puts = await _watched(watcher), await _watched(watcher, updates_only=True, ignore_deletes=True)
        for number in range(20):
            await bucket.put("k", b"%d" % number)
            await (bucket.delete("k") if number % 2 else bucket.purge("k"))
        await bucket.put("end", b"")
        changes = [change for number in range(20) for change in (("k", b"%d" % number), ("k", None))]
        assert await everything == [("k", b"first"), None, *changes, ("end", b"")]
        assert await puts == [None, *(change for change in changes if change[1] is not None), ("end", b"")]


@pytest.mark.parametrize("place", ["same", "other"])
async def test_what_is_replaced_within_a_transaction_is_seen_and_what_is_undone_is_not(
    place: str, tmp_path: Path
) -> None:
    async with _openers(place, tmp_path) as (writer, watcher):
        bucket = await writer.create_bucket("b")
        watching = await _watched(watcher)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the transaction is what is left by it
            async with writer.transaction() as transaction:
                await transaction.bucket(bucket).put("k", b"undone")
                await transaction.bucket(bucket).put("k", b"undone, too")
                raise ZeroDivisionError
        async with writer.transaction() as transaction:
            within = transaction.bucket(bucket)
            await within.put("k", b"1")
            await within.put("k", b"2")
            with pytest.raises(pelton.BucketKeyExistsError):
                await within.create("k", b"refused")
            await within.put("end", b"")
        assert await watching == [None, ("k", b"1"), ("k", b"2"), ("end", b"")]


@pytest.mark.parametrize("place", ["same", "other"])
async def test_initial_values_and_changes_join_without_a_gap(place: str, tmp_path: Path) -> None:
    async with _openers(place, tmp_path) as (writer, watcher):
        bucket = await writer.create_bucket("b")
        await asyncio.gather(*(bucket.put(f"k{number}", b"initial") for number in range(3000)))
        begun = asyncio.Event()
        watching = asyncio.ensure_future(_until_end(await watcher.bucket("b"), begun))
        consumers = await writer.stream("KV_b")
        while not await consumers.consumer_names():
            await asyncio.sleep(0)
        for number in range(50):
            await bucket.put("k", b"%d" % number)
        await bucket.put("end", b"")
        seen = [one for one in await watching if one is not None]
        assert [value for key, value in seen if key == "k"] == [b"%d" % number for number in range(50)]
        assert len(seen) == len(set(seen)) == 3051


@pytest.mark.parametrize("place", ["same", "other"])
async def test_every_version_of_an_object_is_seen(place: str, tmp_path: Path) -> None:
    async with _openers(place, tmp_path) as (writer, watcher):
        objects = await writer.create_objects("o")
        begun = asyncio.Event()

        async def watch() -> list[str | None]:
            seen: list[str | None] = []
            async with asyncio.timeout(60), aclosing((await watcher.objects("o")).watch()) as infos:
                async for info in infos:
                    begun.set()
                    seen.append(info and (info.description or info.name))
                    if info is not None and info.name == "end":
                        break
            return seen

        watching = asyncio.ensure_future(watch())
        await begun.wait()
        for number in range(30):
            await objects.put("o", b"%d" % number, description=str(number))
        await objects.put("end", b"")
        assert await watching == [None, *map(str, range(30)), "end"]


async def test_a_watcher_that_was_stopped_beyond_its_heartbeats_has_missed_nothing(tmp_path: Path) -> None:
    runtime = manual_runtime()
    # By another clock, the writer may find that the watcher's consumer has expired long ago.
    async with (
        pelton.open(tmp_path / "s.pelton", sync="off", runtime=runtime) as writer,
        pelton.open(tmp_path / "s.pelton", sync="off", runtime=runtime) as watcher,
    ):
        bucket = await writer.create_bucket("b")
        watching = await _watched(watcher)
        for key, value in (("k", b"1"), ("k", b"2"), ("end", b"")):
            await bucket.put(key, value)
        # It has not run since, and time has passed for it.
        runtime.clock.advance(60)
        assert await watching == [None, ("k", b"1"), ("k", b"2"), ("end", b"")]


@pytest.mark.parametrize("options", [{"updates_only": True}, {}])
async def test_a_watcher_whose_consumer_is_lost_before_the_first_change_sees_it(options: dict[str, bool]) -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        bucket = await jet.create_bucket("b", history=5)
        await bucket.put("k", b"0")
        watching = await _watched(jet, **options)
        stream = await jet.stream("KV_b")
        for name in await stream.consumer_names():
            await stream.delete_consumer(name)
        for number in (1, 2):
            await bucket.put("k", b"%d" % number)
        await bucket.put("end", b"")
        for _ in range(1000):
            runtime.clock.advance(0.1)
            await asyncio.sleep(0)
        assert watching.done()
        assert [one for one in await watching if one is not None][-3:] == [("k", b"1"), ("k", b"2"), ("end", b"")]


async def test_a_heartbeat_on_the_way_does_not_end_the_initial_values() -> None:
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        bucket = await jet.create_bucket("b")
        await asyncio.gather(*(bucket.put(f"k{number}", b"") for number in range(5000)))
        seen: list[str | None] = []
        async with aclosing(bucket.watch()) as entries:
            async for entry in entries:
                seen.append(entry and entry.key)
                if entry is None:
                    break
                if len(seen) == 100:
                    # It does not read for long: its buffer is full, and it gets heartbeats, though there is more.
                    for _ in range(100):
                        runtime.clock.advance(0.1)
                        await asyncio.sleep(0)
        assert len(seen) == 5001


@pytest.mark.parametrize(
    ("place", "told"), [("same", "does not receive what is replaced"), ("other", "read too slowly: messages are lost")]
)
@pytest.mark.parametrize("bound", ["_KEPT", "_KEPT_BYTES"])
async def test_a_watcher_too_far_behind_is_reported_and_gets_the_newest(
    place: str,
    told: str,
    bound: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pushes, bound, 100)
    async with _openers(place, tmp_path) as (writer, watcher):
        bucket = await writer.create_bucket("b")
        entries = (await watcher.bucket("b")).watch()
        assert await anext(entries) is None
        for number in range(300):
            await bucket.put("k", b"%d" % (number % 10))
        await bucket.put("end", b"")
        seen = []
        async with asyncio.timeout(60), aclosing(entries):
            async for entry in entries:
                assert entry is not None
                seen.append((entry.revision, entry.value))
                if entry.key == "end":
                    break
    assert seen == [*((number + 1, b"%d" % (number % 10)) for number in range(100)), (300, b"9"), (301, b"")]
    assert told in caplog.text
