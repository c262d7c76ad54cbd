"""Object stores (ADR-20): putting and getting objects."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from pelton.api import (
    ConfigError,
    Duration,
    MaxBytesError,
    ObjectChangedError,
    ObjectDamagedError,
    ObjectNotFoundError,
    WrongLastSequenceError,
)
from pelton.buckets import ObjectInfo, ObjectStore
from pelton.connect import Jet
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case, fails, lagging

CONTENT = bytes(range(256)) * 40
SMALL = 1000
MANY = 5 * 1024 * 1024


class _Interrupted(Exception):  # noqa: N818  # raised by a source, not by us
    """The error of a source that fails in the middle."""


def _pieces(content: bytes, *sizes: int) -> Iterator[bytes]:
    position = 0
    while position < len(content):
        for size in sizes:
            yield content[position : position + size]
            position += size


async def _async_pieces(content: bytes, *sizes: int) -> AsyncIterator[bytes]:
    for piece in _pieces(content, *sizes):
        await asyncio.sleep(0)
        yield piece


def _streamed(content: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return reader


async def _subjects(jet: Jet, store: str = "files") -> dict[str, int]:
    info = await (await jet.stream(f"OBJ_{store}")).info(subjects_filter=">")
    return dict(info.state.subjects or {})


async def _chunk_subjects(jet: Jet) -> list[str]:
    return [subject for subject in await _subjects(jet) if subject.startswith("$O.files.C.")]


async def names_of(store: ObjectStore, *, show_deleted: bool = False) -> list[str]:
    listed = store.list(show_deleted=show_deleted)
    return [info.name async for info in listed]


@case
async def its_stream_is_as_every_client_makes_it(jet: Jet) -> None:
    await jet.create_objects("files", ttl=60, max_bytes=10_000, compression=True, metadata={"a": "b"})
    config = (await jet.stream("OBJ_files")).config
    assert config.subjects == ("$O.files.C.>", "$O.files.M.>")
    assert (config.max_age, config.max_bytes) == (Duration(60), 10_000)
    assert (config.discard, config.allow_rollup_hdrs, config.allow_direct) == ("new", True, True)
    assert (config.compression, (config.metadata or {})["a"]) == ("s2", "b")


@case
async def what_is_put_is_got(jet: Jet) -> None:
    store = await jet.create_objects("files")
    digest = "SHA-256=" + urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).decode()
    put = await store.put("a/ä b.txt", CONTENT, description="d", headers={"h": ["1", "2"]}, metadata={"k": "v"})
    assert (put.size, put.chunks, put.digest, put.bucket) == (len(CONTENT), 1, digest, "files")
    assert await store.get("a/ä b.txt") == CONTENT
    info = await (await jet.objects("files")).info("a/ä b.txt")
    assert (info.description, info.headers, info.metadata) == ("d", {"h": ["1", "2"]}, {"k": "v"})
    assert (info.nuid, info.digest, info.max_chunk_size) == (put.nuid, digest, 128 * 1024)
    assert (info.revision, info.deleted, info.link) == (put.revision, False, None)
    assert abs(info.mtime_ns - jet.runtime.clock.now()) < 60 * 10**9


@case
async def it_lies_where_every_client_looks(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a b", CONTENT, chunk_size=SMALL)
    described = "$O.files.M." + urlsafe_b64encode(b"a b").decode()
    assert await _subjects(jet) == {f"$O.files.C.{info.nuid}": 11, described: 1}
    message = await (await jet.stream("OBJ_files")).get_last_message(described)
    assert message.headers["Nats-Rollup"] == "sub"
    assert list(msgspec.json.decode(message.data).items()) == [
        ("name", "a b"),
        ("options", {"max_chunk_size": SMALL}),
        ("bucket", "files"),
        ("nuid", info.nuid),
        ("size", len(CONTENT)),
        ("mtime", "0001-01-01T00:00:00Z"),
        ("chunks", 11),
        ("digest", info.digest),
    ]


@lagging("a reader may be made where what was written has not arrived")
async def anything_that_gives_bytes_can_be_put(jet: Jet) -> None:
    store = await jet.create_objects("files")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "content"
        path.write_bytes(CONTENT)
        with path.open("rb") as file:
            assert (await store.put("file", file, chunk_size=SMALL)).chunks == 11
        await store.put("path", path, chunk_size=SMALL)
        with path.open("rb", buffering=0) as file:
            await store.put("raw", file, chunk_size=SMALL)
    await store.put("memory", io.BytesIO(CONTENT), chunk_size=SMALL)
    await store.put("view", memoryview(CONTENT), chunk_size=SMALL)
    await store.put("array", bytearray(CONTENT), chunk_size=SMALL)
    await store.put("iterator", _pieces(CONTENT, 1, 2500, 7), chunk_size=SMALL)
    await store.put("list", [CONTENT[:5], CONTENT[5:]], chunk_size=SMALL)
    await store.put("async", _async_pieces(CONTENT, 999, 1), chunk_size=SMALL)
    await store.put("stream", _streamed(CONTENT), chunk_size=SMALL)
    for name in await names_of(store):
        info = await store.info(name)
        assert (info.chunks, info.size, await store.get(name)) == (11, len(CONTENT), CONTENT), name
    assert len(await names_of(store)) == 10


@case
async def what_cannot_be_put(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await fails(ConfigError, store.put("", CONTENT))
    await fails(ConfigError, store.put("a", "text"))  # type: ignore[arg-type]  # what is refused
    await fails(ConfigError, store.put("a", 5))  # type: ignore[arg-type]
    await fails(ConfigError, store.put("a", ["text"]))  # type: ignore[list-item]
    await fails(ConfigError, store.put("a", io.StringIO("text")))  # type: ignore[arg-type]
    await fails(ConfigError, store.put("a", CONTENT, chunk_size=0))
    assert await _subjects(jet) == {}


@case
async def it_can_be_empty(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", b"")
    assert (info.size, info.chunks) == (0, 0)
    assert await store.get("a") == b""
    assert [chunk async for chunk in store.get_chunks("a")] == []


@case
async def more_than_a_batch(jet: Jet) -> None:
    store = await jet.create_objects("files")
    content = CONTENT * (MANY // len(CONTENT))
    told: list[tuple[int, int]] = []
    await store.put("a", content, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(content), len(content))
    assert len(told) > 1
    told.clear()
    assert await store.get("a", progress=lambda done, total: told.append((done, total))) == content
    assert told[-1] == (len(content), len(content))
    await store.put("b", _async_pieces(content, 100_000))
    assert b"".join([chunk async for chunk in store.get_chunks("b")]) == content


@case
async def a_file_is_whole_or_not_there(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT, chunk_size=SMALL)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        path.write_bytes(b"before")
        assert (await store.get_file("a", path)).size == len(CONTENT)
        assert path.read_bytes() == CONTENT
        with io.BytesIO() as file:
            await store.get_file("a", file)
            assert file.getvalue() == CONTENT
        await fails(ObjectNotFoundError, store.get_file("b", Path(folder) / "b"))
        await _damage(jet, await store.info("a"))
        await fails(ObjectDamagedError, store.get_file("a", path))
        assert path.read_bytes() == CONTENT
        assert os.listdir(folder) == ["out"]


async def _damage(jet: Jet, info: ObjectInfo) -> None:
    """Keep the object's entry, but replace its chunks by others."""
    await (await jet.stream("OBJ_files")).purge(filter=f"$O.files.C.{info.nuid}")
    await jet.publish(f"$O.files.C.{info.nuid}", bytes(info.size))


@lagging("a reader may be made where what was written has not arrived")
async def what_is_not_what_was_put_is_found(jet: Jet) -> None:
    store = await jet.create_objects("files")
    info = await store.put("a", CONTENT)
    await _damage(jet, info)
    await fails(ObjectDamagedError, store.get("a"))
    chunks = store.get_chunks("a")
    assert await anext(chunks) == bytes(len(CONTENT))
    await fails(ObjectDamagedError, anext(chunks))
    await (await jet.stream("OBJ_files")).purge(filter=f"$O.files.C.{info.nuid}")
    await fails(ObjectDamagedError, store.get("a"))
    await jet.publish("$O.files.M." + urlsafe_b64encode(b"b").decode(), b"no description")
    await fails(ObjectDamagedError, store.get("b"))
    await jet.publish("$O.files.C.whose", b"")
    await fails(ObjectDamagedError, store.cleanup(older_than=0))
    assert await names_of(store) == ["a"]
    await store.put("b", CONTENT)
    assert await store.get("b") == CONTENT


@lagging("a reader may be made where what was written has not arrived")
async def a_new_object_takes_the_place_of_the_old_one(jet: Jet) -> None:
    store = await jet.create_objects("files")
    old = await store.put("a", CONTENT, chunk_size=SMALL)

    async def content() -> AsyncIterator[bytes]:
        yield b"new"
        assert await store.get("a") == CONTENT
        assert await names_of(store) == ["a"]

    new = await store.put("a", content())
    assert await store.get("a") == b"new"
    assert old.nuid != new.nuid
    assert await _chunk_subjects(jet) == [f"$O.files.C.{new.nuid}"]


@case
async def who_reads_the_old_one_meanwhile_is_told(jet: Jet) -> None:
    store = await jet.create_objects("files")
    content = CONTENT * (3 * MANY // len(CONTENT))
    await store.put("a", content)
    chunks = store.get_chunks("a")
    seen = [await anext(chunks)]
    await store.put("a", b"new" * 100_000)

    async def rest() -> None:
        seen.extend([chunk async for chunk in chunks])

    await fails(ObjectChangedError, rest())
    read = b"".join(seen)
    assert content.startswith(read)
    assert await store.get("a") == b"new" * 100_000


@case
async def what_is_interrupted_leaves_nothing(jet: Jet) -> None:
    store = await jet.create_objects("files")
    old = await store.put("a", b"old")

    async def failing(size: int) -> AsyncIterator[bytes]:
        for piece in _pieces(CONTENT * (size // len(CONTENT)), 100_000):
            yield piece
        raise _Interrupted

    for size in (0, 2 * len(CONTENT), 3 * MANY):
        try:
            await store.put("a", failing(size))
        except _Interrupted:
            assert await store.get("a") == b"old"
            assert await _chunk_subjects(jet) == [f"$O.files.C.{old.nuid}"]
        else:
            raise AssertionError("it was put")


@case
async def what_is_cancelled_leaves_nothing(jet: Jet) -> None:
    store = await jet.create_objects("files")
    going = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for piece in _pieces(CONTENT * (3 * MANY // len(CONTENT)), 100_000):
            yield piece
        going.set()
        await asyncio.Event().wait()

    putting = asyncio.gather(store.put("a", endless()))
    await going.wait()
    putting.cancel()
    try:
        await putting
    except asyncio.CancelledError:
        assert await _subjects(jet) == {}
    else:
        raise AssertionError("it was not cancelled")


@lagging("a reader may be made where what was written has not arrived")
async def what_has_no_room_leaves_nothing(jet: Jet) -> None:
    store = await jet.create_objects("files", max_bytes=1_000_000)
    await store.put("a", CONTENT)
    for size in (2_000_000, 3 * MANY):
        await fails(MaxBytesError, store.put("b", bytes(size)))
        assert len(await _chunk_subjects(jet)) == 1
    assert await names_of(store) == ["a"]
    await store.put("b", CONTENT)


@case
async def of_two_that_put_at_once_one_stays(jet: Jet) -> None:
    store = await jet.create_objects("files")
    contents = [bytes([number]) * 2000 for number in range(5)]
    await asyncio.gather(*(store.put("a", content, chunk_size=SMALL) for content in contents))
    assert await store.get("a") in contents
    await store.cleanup(older_than=0)
    assert await _chunk_subjects(jet) == [f"$O.files.C.{(await store.info('a')).nuid}"]


@lagging("a reader may be made where what was written has not arrived")
async def what_is_deleted_is_gone(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT)
    await store.put("b", CONTENT)
    await store.delete("a")
    await fails(ObjectNotFoundError, store.get("a"))
    await fails(ObjectNotFoundError, store.info("a"))
    await fails(ObjectNotFoundError, store.delete("a"))
    error = await fails(ObjectNotFoundError, store.get("never"))
    assert isinstance(error, KeyError)
    assert (error.bucket, error.name) == ("files", "never")
    info = await store.info("a", show_deleted=True)
    assert (info.deleted, info.size, info.chunks, info.digest) == (True, 0, 0, "")
    assert await names_of(store) == ["b"]
    assert sorted(await names_of(store, show_deleted=True)) == ["a", "b"]
    assert len(await _chunk_subjects(jet)) == 1
    await store.put("a", b"again")
    assert await store.get("a") == b"again"


@lagging("what a replica does not have yet is not cleaned away")
async def what_nobody_describes_is_cleaned_away(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT, chunk_size=SMALL)
    await store.put("b", CONTENT, chunk_size=SMALL)
    await store.delete("b")
    await jet.publish("$O.files.C.orphan", CONTENT)
    await jet.publish("$O.files.C.orphan", CONTENT)
    assert await store.cleanup() == 0
    assert await store.cleanup(older_than=0) == 1
    assert await store.cleanup(older_than=0) == 0
    assert (await store.get("a"), await names_of(store)) == (CONTENT, ["a"])


@case
async def a_put_that_was_taken_for_dead_fails(jet: Jet) -> None:
    store = await jet.create_objects("files")

    async def slow() -> AsyncIterator[bytes]:
        for piece in _pieces(CONTENT * (3 * MANY // len(CONTENT)), 100_000):
            yield piece
        # While chunks are still coming, it is not considered dead.
        await eventually(lambda: store.cleanup(older_than=0), 1)
        yield b"too late"

    await fails(ObjectChangedError, store.put("a", slow()))
    assert await _subjects(jet) == {}


@case
async def who_changes_it_at_the_same_moment_is_told(jet: Jet) -> None:
    store = await jet.create_objects("files")
    await store.put("a", CONTENT)
    changes = [store.update("a", description=str(number)) for number in range(5)]
    answers = await asyncio.gather(*changes, return_exceptions=True)
    assert {type(answer) for answer in answers} <= {ObjectInfo, WrongLastSequenceError}
    assert (await store.info("a")).description in "01234"
