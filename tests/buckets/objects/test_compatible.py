"""Objects that nats-py puts can be read here, and the other way round: the stores are compatible."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import nats.js.api
import nats.js.errors
import pytest

import pelton
from tests.kit.nats_server import NatsServer, nats_server

CONTENT = os.urandom(700_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def jet(server: NatsServer) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(server.url) as jet:
        yield jet
        for name in await jet.objects_names():
            await jet.delete_objects(name)


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[Any]:
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


async def test_they_get_what_we_put(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_objects("ours", description="d")
    theirs = await js.object_store("ours")
    put = await ours.put("a/b c", CONTENT, description="about", headers={"h": ["1"]})
    got = await theirs.get("a/b c")
    assert (got.data, got.info.digest, got.info.nuid) == (CONTENT, put.digest, put.nuid)
    assert (got.info.size, got.info.chunks, got.info.description) == (len(CONTENT), 6, "about")
    assert (got.info.headers, got.info.options.max_chunk_size) == ({"h": ["1"]}, 128 * 1024)
    await ours.put("empty", b"")
    assert (await theirs.get("empty")).data == b""
    await ours.add_link("l", put)
    assert (await theirs.get("l")).data == CONTENT
    assert sorted(info.name for info in await theirs.list()) == ["a/b c", "empty", "l"]
    await ours.delete("a/b c")
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await theirs.get("a/b c")
    assert (await theirs.get_info("a/b c", show_deleted=True)).deleted
    assert (await theirs.status()).description == "d"
    await ours.seal()
    assert (await theirs.status()).sealed


async def test_we_get_what_they_put(jet: pelton.Jet, js: Any) -> None:
    theirs = await js.create_object_store("theirs", config=nats.js.api.ObjectStoreConfig(description="d"))
    ours = await jet.objects("theirs")
    options = nats.js.api.ObjectMetaOptions(max_chunk_size=100_000)
    meta = nats.js.api.ObjectMeta(name="a", description="about", headers={"h": ["1"]}, options=options)
    put = await theirs.put("a", io.BytesIO(CONTENT), meta=meta)
    assert await ours.get("a") == CONTENT
    info = await ours.info("a")
    assert (info.nuid, info.digest, info.chunks, info.max_chunk_size) == (put.nuid, put.digest, 7, 100_000)
    assert (info.description, info.headers) == ("about", {"h": ["1"]})
    await theirs.put("b", b"")
    await theirs.delete("a")
    with pytest.raises(pelton.ObjectNotFoundError):
        await ours.get("a")
    assert (await ours.info("a", show_deleted=True)).deleted
    assert [found.name async for found in ours.list()] == ["b"]
    assert await ours.get("b") == b""


async def test_each_takes_the_place_of_the_others_objects(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_objects("both")
    theirs = await js.object_store("both")
    await theirs.put("a", CONTENT)
    await ours.put("a", CONTENT[:300_000])
    assert (await theirs.get("a")).data == CONTENT[:300_000]
    await theirs.put("a", CONTENT[:200_000])
    assert await ours.get("a") == CONTENT[:200_000]
    await ours.update("a", description="ours", new_name="b")
    assert ((await theirs.get("b")).data, (await theirs.get_info("b")).description) == (CONTENT[:200_000], "ours")
    assert await ours.cleanup(older_than=0) == 0
    stream = await jet.stream("OBJ_both")
    assert len((await stream.info(subjects_filter="$O.both.C.>")).state.subjects or {}) == 1
    await ours.delete("b")
    await theirs.put("b", b"again")
    assert await ours.get("b") == b"again"


async def test_each_watches_the_other(jet: pelton.Jet, js: Any) -> None:
    ours = await jet.create_objects("watched")
    theirs = await js.object_store("watched")
    watching = ours.watch()
    assert await anext(watching) is None
    await theirs.put("a", CONTENT)
    async with asyncio.timeout(20):
        info = await anext(watching)
    assert info is not None
    assert (info.name, info.size) == ("a", len(CONTENT))
    watcher = await theirs.watch()
    assert (await watcher.updates(timeout=20)).name == "a"
    assert await watcher.updates(timeout=20) is None
    await ours.delete("a")
    assert (await watcher.updates(timeout=20)).deleted
    await watcher.stop()
    await watching.aclose()


async def test_a_stream_without_direct_gets_is_read_as_well(jet: pelton.Jet) -> None:
    ours = await jet.create_objects("slow")
    await ours.put("a", CONTENT)
    await jet.update_stream("OBJ_slow", allow_direct=False)
    assert await (await jet.objects("slow")).get("a") == CONTENT
