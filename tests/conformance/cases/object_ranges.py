"""Parts of objects: the same bytes as a slice of the whole, whatever else was stored meanwhile."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator

import msgspec

from pelton.api import ConfigError, ObjectChangedError, ObjectDamagedError, ObjectNotFoundError
from pelton.buckets import ObjectStore
from pelton.connect import Jet
from tests.conformance.cases.objects import CONTENT, SMALL
from tests.conformance.cases.table import case, fails, lagging

_LAGGING = "a reader may be made where what was written has not arrived"
_ENDS = (0, 1, SMALL - 1, SMALL, SMALL + 1, 5 * SMALL, len(CONTENT) - 1, len(CONTENT), len(CONTENT) + 5)


async def _compare(store: ObjectStore, name: str, content: bytes, bounds: tuple[int, ...] = _ENDS) -> None:
    for start in bounds:
        for end in (*bounds, None):
            assert await store.get_range(name, start, end) == content[start:end], (start, end)


@lagging(_LAGGING)
async def a_range_is_what_a_slice_is(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", CONTENT, chunk_size=SMALL)
    await _compare(store, "a", CONTENT)
    await store.add_link("link", info)
    assert await store.get_range("link", 7, 9) == CONTENT[7:9]
    assert await store.get_range(await store.info("link"), 7, 9) == CONTENT[7:9]
    await store.put("empty", b"")
    assert await store.get_range("empty") == b""
    await fails(ObjectNotFoundError, store.get_range("b", 1, 2))
    await fails(ConfigError, store.get_range("a", -1))
    await fails(ConfigError, store.get_range("a", 0, -1))


@lagging(_LAGGING)
async def ranges_of_objects_that_were_put_side_by_side(jet: Jet) -> None:
    store = await jet.create_objects("files")
    stream = await jet.stream("OBJ_files")

    async def content() -> AsyncIterator[bytes]:
        for position in range(0, len(CONTENT), SMALL):
            yield CONTENT[position : position + SMALL]

    # Chunks of 100 bytes, some at a time: the two share the sequences.
    await asyncio.gather(*(store.put(name, content(), chunk_size=100) for name in ("a", "b")))
    await store.put("c", CONTENT, chunk_size=100)
    # What is removed between the chunks of an object changes nothing, either.
    await stream.purge(filter=f"$O.files.C.{(await store.info('b')).nuid}")
    bounds = (0, 99, 100, 1050, 5000, 7777, len(CONTENT) - 50)
    await _compare(store, "a", CONTENT, bounds)
    await _compare(store, "c", CONTENT, bounds)


@lagging(_LAGGING)
async def ranges_among_other_messages(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", CONTENT, chunk_size=SMALL)
    subject = f"$O.files.C.{info.nuid}"
    await (await jet.stream("OBJ_files")).purge(filter=subject)
    for number, position in enumerate(range(0, len(CONTENT), SMALL)):
        await jet.publish(subject, CONTENT[position : position + SMALL])
        for _ in range((0, 7, 1, 0, 0, 3, 20)[number % 7]):
            await jet.publish("$O.files.C.other", b"")
    await _compare(store, "a", CONTENT, (0, 999, 1000, 3500, 4000, 6999, len(CONTENT) - 1))


@lagging(_LAGGING)
async def ranges_of_chunks_of_various_sizes(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", CONTENT, chunk_size=SMALL)
    subject, meta = f"$O.files.C.{info.nuid}", "$O.files.M." + urlsafe_b64encode(b"a").decode()
    # As another client may have made it.
    await (await jet.stream("OBJ_files")).purge(filter=subject)
    parts = (CONTENT[:10], CONTENT[10:3000], CONTENT[3000:3001], CONTENT[3001:])
    for part in parts:
        await jet.publish(subject, part)
    told = {"name": "a", "bucket": "files", "nuid": info.nuid, "size": len(CONTENT), "chunks": len(parts)}
    told["digest"] = info.digest
    await jet.publish(meta, msgspec.json.encode(told), headers={"Nats-Rollup": "sub"})
    await _compare(store, "a", CONTENT, (0, 9, 10, 2999, 3000, 3001, len(CONTENT)))


@lagging(_LAGGING)
async def ranges_are_of_one_object(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", CONTENT, chunk_size=SMALL)
    assert await store.get_range(info, 5000, 5010) == CONTENT[5000:5010]
    await store.put("a", CONTENT[::-1], chunk_size=SMALL)
    await fails(ObjectChangedError, store.get_range(info, 5000, 5010))
    assert await store.get_range("a", 5000, 5010) == CONTENT[::-1][5000:5010]
    new = await store.info("a")
    stream, subject = await jet.stream("OBJ_files"), f"$O.files.C.{new.nuid}"
    await stream.delete_message((await stream.get_next_message(subject)).seq + 4)
    for start, end in ((4 * SMALL + 5, 5 * SMALL), (3 * SMALL, 6 * SMALL), (0, None)):
        await fails(ObjectDamagedError, store.get_range("a", start, end))
    await stream.purge(filter=subject, keep=2)
    for start in (0, SMALL, 5000):
        await fails(ObjectDamagedError, store.get_range("a", start, start + 1))
    await jet.publish(subject, bytes(SMALL + 1))
    await fails(ObjectDamagedError, store.get_range("a", 0))


@case
async def a_range_of_a_large_object_is_small(jet: Jet) -> None:
    store = await jet.create_objects("files")
    content = CONTENT * 200
    info = await store.put("a", content, chunk_size=4096)
    starts = range(0, len(content), 100_003)
    read = await asyncio.gather(*(store.get_range(info, start, start + 20) for start in starts))
    assert read == [content[start : start + 20] for start in starts]
