"""Keys that nats-py writes can be read here, and the other way round: the buckets are compatible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.js.api
import nats.js.errors
import pytest

import pelton
from tests.kit.nats_server import NatsServer, nats_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def jet(server: NatsServer) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(server.url) as jet:
        yield jet
        for name in await jet.bucket_names():
            await jet.delete_bucket(name)


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[Any]:
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


async def history_of(theirs: Any, key: str) -> list[Any]:
    """Return a key's history: nats-py finds none if the only message came before the answer that it is the only one."""
    while True:
        try:
            return list(await theirs.history(key))
        except nats.js.errors.NoKeysError:
            continue


async def test_they_read_what_we_write(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_bucket("ours", history=5)
    theirs = await js.key_value("ours")
    revision = await ours.put("a.b", b"1")
    assert ((entry := await theirs.get("a.b")).value, entry.revision) == (b"1", revision)
    await ours.update("a.b", b"2", revision)
    await ours.put("c", b"3")
    assert sorted(await theirs.keys()) == ["a.b", "c"]
    await ours.delete("c")
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await theirs.get("c")
    assert [entry.value for entry in await theirs.history("a.b")] == [b"1", b"2"]
    await ours.purge("a.b")
    assert [entry.operation for entry in await theirs.history("a.b")] == ["PURGE"]
    assert (await theirs.status()).history == 5


async def test_we_read_what_they_write(jet: pelton.Jet, js: Any) -> None:
    theirs = await js.create_key_value(nats.js.api.KeyValueConfig(bucket="theirs", history=5))
    ours = await jet.bucket("theirs")
    revision = await theirs.create("a", b"1")
    assert ((entry := await ours.get("a")).value, entry.revision) == (b"1", revision)
    await theirs.update("a", b"2", revision)
    await theirs.put("b", b"3")
    await theirs.delete("b")
    assert [(entry.value, entry.operation) for entry in await ours.history("b")] == [(b"3", "put"), (None, "delete")]
    await theirs.purge("a")
    with pytest.raises(pelton.BucketKeyNotFoundError):
        await ours.get("a")
    assert await ours.create("a", b"4") > revision


async def test_neither_overtakes_the_other(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_bucket("both")
    theirs = await js.key_value("both")
    revision = await theirs.put("a", b"1")
    await ours.update("a", b"2", revision)
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await theirs.update("a", b"3", revision)
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await theirs.create("a", b"3")
    await theirs.delete("a")
    await ours.create("a", b"5")


async def test_each_watches_the_other(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_bucket("watched")
    theirs = await js.key_value("watched")
    watching = ours.watch()
    assert await anext(watching) is None
    await theirs.put("a", b"1")
    async with asyncio.timeout(20):
        entry = await anext(watching)
    assert entry is not None
    assert (entry.key, entry.value) == ("a", b"1")
    watcher = await theirs.watchall()
    assert (await watcher.updates(timeout=20)).value == b"1"
    assert await watcher.updates(timeout=20) is None
    await ours.delete("a")
    assert (await watcher.updates(timeout=20)).operation == "DEL"
    await watching.aclose()


async def test_times_to_live_and_marks_are_the_same_to_both(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_bucket("times", limit_marker_ttl=60)
    theirs = await js.key_value("times")
    assert (await theirs.status()).marker_ttl == 60
    await theirs.create("theirs", b"1", msg_ttl=1)
    await ours.put("ours", b"2", ttl=1)
    watching = ours.watch(updates_only=True)
    assert await anext(watching) is None
    async with asyncio.timeout(20):
        ended = [await anext(watching), await anext(watching)]
    await watching.aclose()
    assert {(entry.key, entry.operation) for entry in ended if entry is not None} == {
        ("ours", "purge"),
        ("theirs", "purge"),
    }
    for key in ("ours", "theirs"):
        # nats-py's get does not know a server's mark, its watchers do.
        assert [entry.operation for entry in await history_of(theirs, key)] == ["PURGE"]
        with pytest.raises(pelton.BucketKeyNotFoundError):
            await ours.get(key)
    assert await ours.create("theirs", b"3", ttl=100) == 5
    await theirs.purge("theirs", msg_ttl=60)
    assert [entry.operation for entry in await ours.history("theirs")] == ["purge"]


async def test_history_purges_and_keys_are_the_same_to_both(jet: pelton.Jet, js: Any) -> None:
    theirs = await js.create_key_value(nats.js.api.KeyValueConfig(bucket="kept", history=10))
    ours = await jet.bucket("kept")
    for number in range(3):
        await ours.put("a.b", b"%d" % number)
        await theirs.put("a.c", b"%d" % number)
    await ours.delete("a.b")
    their_history = [(entry.value or None, entry.operation) for entry in await theirs.history("a.b")]
    assert their_history == [(b"0", None), (b"1", None), (b"2", None), (None, "DEL")]
    assert [entry.value for entry in await ours.history("a.c")] == [b"0", b"1", b"2"]
    assert (await theirs.get("a.b", revision=3)).value == (await ours.get("a.b", revision=3)).value == b"1"
    listed = ours.keys("a.*")
    assert [key async for key in listed] == await theirs.keys(filters=["a."]) == ["a.c"]
    await theirs.purge_deletes(olderthan=0)
    with pytest.raises(pelton.BucketKeyNotFoundError):
        await ours.history("a.b")
    await theirs.delete("a.c")
    await ours.purge_deletes(older_than=0)
    assert (await theirs.status()).values == 0


async def test_a_watch_resumes_across_what_both_wrote(jet: pelton.Jet, js: Any) -> None:
    theirs = await js.create_key_value(nats.js.api.KeyValueConfig(bucket="resumed", history=5))
    ours = await jet.bucket("resumed")
    revisions = [await theirs.put("a", b"1"), await ours.put("a", b"2"), await theirs.put("b", b"3")]
    watching = ours.watch(resume_from_revision=revisions[1])
    seen = [await anext(watching) for _ in range(3)]
    await watching.aclose()
    assert [entry and (entry.key, entry.revision) for entry in seen] == [("a", 2), ("b", 3), None]
    watcher = await theirs.watch("*", include_history=True)
    assert [(await watcher.updates(timeout=20)).revision for _ in range(3)] == revisions
    await watcher.stop()


async def test_two_processes_worth_of_openers_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as one, pelton.open(path) as two:
        mine, theirs = await one.create_bucket("b"), await two.bucket("b")
        watching = theirs.watch()
        assert await anext(watching) is None
        revision = await mine.create("a", b"1")
        async with asyncio.timeout(20):
            entry = await anext(watching)
        assert entry is not None
        await theirs.update("a", b"2", entry.revision)
        with pytest.raises(pelton.WrongLastSequenceError):
            await mine.update("a", b"3", revision)
        await watching.aclose()


def test_without_await(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "a.pelton") as jet:
        bucket = jet.create_bucket("b", history=2)
        bucket.put("a", b"1")
        assert bucket.get("a").value == b"1"
        assert list(bucket.keys()) == ["a"]
        for entry in bucket.watch():
            assert entry is not None
            break
