"""Key-value buckets (ADR-8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from pelton.api import (
    ApiError,
    BucketKeyExistsError,
    BucketKeyNotFoundError,
    BucketNotFoundError,
    ConfigError,
    Duration,
    MessageTooLargeError,
    WrongLastSequenceError,
)
from pelton.buckets import Base64Codec, Bucket, Entry
from pelton.connect import Jet
from tests.conformance.cases.table import case, fails, lagging


class Car(msgspec.Struct):
    """A value of a user's type."""

    colour: str
    doors: int = 4


async def _initial(entries: AsyncIterator[Entry[Any] | None]) -> list[tuple[str, bytes | None, int, str]]:
    """Return what a watcher yields before the mark that ends the initial values."""
    found: list[tuple[str, bytes | None, int, str]] = []
    async for entry in entries:
        if entry is None:
            return found
        found.append((entry.key, entry.value, entry.revision, entry.operation))
    raise AssertionError("the watcher ended without its mark")


async def _next(entries: AsyncIterator[Entry[Any] | None]) -> tuple[str, bytes | None, str]:
    async with asyncio.timeout(60):
        entry = await anext(entries)
    assert entry is not None
    return entry.key, entry.value, entry.operation


async def _keys(bucket: Bucket[Any], *filters: str) -> list[str]:
    listed = bucket.keys(*filters)
    return sorted([key async for key in listed])


async def _filled(jet: Jet, **settings: Any) -> Bucket[bytes]:
    bucket: Bucket[bytes] = await jet.create_bucket("cars", **settings)
    await bucket.put("a.1", b"one")
    await bucket.put("b.1", b"two")
    await bucket.put("a.1", b"three")
    await bucket.put("a.2", b"four")
    await bucket.delete("b.1")
    return bucket


@case
async def its_stream_is_as_every_client_makes_it(jet: Jet) -> None:
    await jet.create_bucket("cars", history=5, ttl=60, max_value_size=100)
    config = (await jet.stream("KV_cars")).config
    assert (config.subjects, config.max_msgs_per_subject, config.max_age) == (("$KV.cars.>",), 5, Duration(60))
    assert (config.discard, config.allow_rollup_hdrs, config.deny_delete, config.allow_direct) == (
        "new",
        True,
        True,
        True,
    )
    assert config.duplicate_window == Duration(60)


@case
async def what_is_put_is_got(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars")
    assert await bucket.put("a", b"1") == 1
    assert await bucket.put("a", b"2") == 2
    entry = await bucket.get("a")
    assert (entry.bucket, entry.key, entry.value, entry.revision, entry.operation) == ("cars", "a", b"2", 2, "put")
    assert abs(entry.time_ns - jet.runtime.clock.now()) < 60 * 10**9
    again = await jet.bucket("cars")
    assert (await again.get("a")).value == b"2"


@lagging("a reader may be made where what was written has not arrived")
async def revisions_that_are_kept_can_be_got(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", history=2)
    for value in (b"1", b"2", b"3"):
        await bucket.put("a", value)
    await bucket.put("b", b"other")
    assert (await bucket.get("a", revision=2)).value == b"2"
    await fails(BucketKeyNotFoundError, bucket.get("a", revision=1))
    await fails(BucketKeyNotFoundError, bucket.get("a", revision=4))
    assert [entry.value for entry in await bucket.history("a")] == [b"2", b"3"]


@case
async def what_is_not_there(jet: Jet) -> None:
    await fails(BucketNotFoundError, jet.bucket("cars"))
    await fails(BucketNotFoundError, jet.delete_bucket("cars"))
    bucket = await jet.create_bucket("cars")
    error = await fails(BucketKeyNotFoundError, bucket.get("a"))
    assert (error.bucket, error.key) == ("cars", "a")
    assert isinstance(error, KeyError)
    await fails(BucketKeyNotFoundError, bucket.history("a"))


@case
async def creating_takes_what_is_not_there_or_deleted(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars")
    assert await bucket.create("a", b"1") == 1
    await fails(BucketKeyExistsError, bucket.create("a", b"2"))
    await bucket.delete("a")
    assert await bucket.create("a", b"3") == 3
    await bucket.purge("a")
    assert await bucket.create("a", b"4") == 5
    assert (await bucket.get("a")).value == b"4"


@case
async def of_many_that_create_one_does(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars")
    asked = [bucket.create("a", b"%d" % number) for number in range(10)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, int) for answer in answers) == 1
    assert sum(isinstance(answer, BucketKeyExistsError) for answer in answers) == 9


@case
async def updating_compares_and_sets(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars")
    first = await bucket.update("a", b"1", 0)
    second = await bucket.update("a", b"2", first)
    error = await fails(WrongLastSequenceError, bucket.update("a", b"3", first))
    assert error.seq == second
    assert (await bucket.get("a")).value == b"2"


@lagging("a reader may be made where what was written has not arrived")
async def deleting_leaves_older_revisions_and_purging_none(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", history=5)
    await bucket.put("a", b"1")
    await bucket.put("a", b"2")
    await bucket.delete("a")
    await fails(BucketKeyNotFoundError, bucket.get("a"))
    assert [(entry.value, entry.operation) for entry in await bucket.history("a")] == [
        (b"1", "put"),
        (b"2", "put"),
        (None, "delete"),
    ]
    await bucket.purge("a")
    assert [entry.operation for entry in await bucket.history("a")] == ["purge"]


@case
async def deleting_may_expect_a_revision(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars")
    revision = await bucket.put("a", b"1")
    await fails(WrongLastSequenceError, bucket.delete("a", revision=revision + 1))
    await fails(WrongLastSequenceError, bucket.purge("a", revision=revision + 1))
    await bucket.delete("a", revision=revision)
    await fails(BucketKeyNotFoundError, bucket.get("a"))


@lagging("a reader may be made where what was written has not arrived")
async def keys_that_are_there(jet: Jet) -> None:
    bucket = await _filled(jet)
    assert await _keys(bucket) == ["a.1", "a.2"]
    assert await _keys(bucket, "a.*") == ["a.1", "a.2"]
    assert await _keys(bucket, "b.>", "c.>") == []
    empty = await jet.create_bucket("empty")
    assert await _keys(empty) == []


@lagging("a reader may be made where what was written has not arrived")
async def watching_begins_with_what_is_there(jet: Jet) -> None:
    bucket = await _filled(jet)
    entries = bucket.watch()
    assert await _initial(entries) == [
        ("a.1", b"three", 3, "put"),
        ("a.2", b"four", 4, "put"),
        ("b.1", None, 5, "delete"),
    ]
    await bucket.put("c", b"five")
    assert await _next(entries) == ("c", b"five", "put")
    await bucket.purge("a.1")
    assert await _next(entries) == ("a.1", None, "purge")
    await entries.aclose()


@lagging("a reader may be made where what was written has not arrived")
async def watching_some_keys(jet: Jet) -> None:
    bucket = await _filled(jet)
    entries = bucket.watch("a.*")
    assert [entry[0] for entry in await _initial(entries)] == ["a.1", "a.2"]
    await entries.aclose()
    entries = bucket.watch("a.2", "b.>", ignore_deletes=True)
    assert [entry[0] for entry in await _initial(entries)] == ["a.2"]
    await entries.aclose()


@lagging("a reader may be made where what was written has not arrived")
async def watching_with_history_updates_only_or_from_a_revision(jet: Jet) -> None:
    bucket = await _filled(jet, history=3)
    entries = bucket.watch(include_history=True)
    assert [entry[2] for entry in await _initial(entries)] == [1, 2, 3, 4, 5]
    await entries.aclose()
    entries = bucket.watch(resume_from_revision=4)
    assert [entry[2] for entry in await _initial(entries)] == [4, 5]
    await entries.aclose()
    entries = bucket.watch(updates_only=True)
    assert await _initial(entries) == []
    await bucket.put("a.1", b"new")
    assert await _next(entries) == ("a.1", b"new", "put")
    await entries.aclose()
    await fails(ConfigError, _initial(bucket.watch(include_history=True, updates_only=True)))


@lagging("a reader may be made where what was written has not arrived")
async def watching_without_values(jet: Jet) -> None:
    bucket = await _filled(jet)
    entries = bucket.watch(meta_only=True)
    assert await _initial(entries) == [("a.1", None, 3, "put"), ("a.2", None, 4, "put"), ("b.1", None, 5, "delete")]
    await entries.aclose()


@lagging("a key is read where it lies: a replica may not have it yet")
async def what_deletes_left_can_be_removed(jet: Jet) -> None:
    bucket = await _filled(jet, history=3)
    await bucket.purge_deletes()
    assert [entry.operation for entry in await bucket.history("b.1")] == ["delete"]
    await bucket.purge_deletes(older_than=0)
    await fails(BucketKeyNotFoundError, bucket.history("b.1"))
    assert (await bucket.status()).values == 3


@lagging("a reader may be made where what was written has not arrived")
async def a_key_may_end_by_itself(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", limit_marker_ttl=10)
    entries = bucket.watch()
    assert await _initial(entries) == []
    await bucket.create("a", b"1", ttl=1)
    assert await _next(entries) == ("a", b"1", "put")
    assert await _next(entries) == ("a", None, "purge")
    await fails(BucketKeyNotFoundError, bucket.get("a"))
    await entries.aclose()


@case
async def its_status(jet: Jet) -> None:
    bucket = await _filled(jet, history=3, ttl=3600, compression=True)
    status = await bucket.status()
    assert (status.bucket, status.values, status.history, status.ttl) == ("cars", 5, 3, 3600)
    assert (status.is_compressed, status.storage, status.limit_marker_ttl) == (True, "file", 0)
    assert await jet.bucket_names() == ["cars"]
    await jet.delete_bucket("cars")
    assert await jet.bucket_names() == []


@case
async def values_of_a_type(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", type=Car)
    await cars.put("a", Car("red"))
    assert (await cars.get("a")).value == Car("red", 4)
    plain = await jet.bucket("cars")
    assert (await plain.get("a")).value == b'{"colour":"red","doors":4}'


@lagging("a reader may be made where what was written has not arrived")
async def names_are_checked(jet: Jet) -> None:
    for name in ("", "a b", "a.b", "a*", "ä"):
        await fails(ConfigError, jet.create_bucket(name))
    await fails(ConfigError, jet.create_bucket("a", history=65))
    bucket = await jet.create_bucket("cars")
    for key in ("", ".a", "a.", "a..b", "a b", "a*", ">", "ä"):
        await fails(ConfigError, bucket.put(key, b""))
        await fails(ConfigError, bucket.get(key))
    for filters in ("", "a..*", "a b", ">.a"):
        await fails(ConfigError, _initial(bucket.watch(filters)))
    assert await bucket.put("-/_=.aA0", b"") == 1


@case
async def a_value_has_a_limit(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", max_value_size=10, limit_marker_ttl=60)
    await fails(MessageTooLargeError, bucket.put("a", bytes(11)))
    revision = await bucket.create("a", bytes(10), ttl=60)
    await fails(MessageTooLargeError, bucket.update("a", bytes(11), revision))
    await bucket.update("a", bytes(10), revision)
    await bucket.put("a", bytes(10))
    await bucket.delete("a")
    await fails(MessageTooLargeError, bucket.create("a", bytes(11)))
    coded = await jet.bucket("cars", codec=Base64Codec())
    await coded.put("coded", bytes(10))
    await fails(MessageTooLargeError, coded.put("coded", bytes(11)))


@case
async def a_limit_of_values_can_be_changed(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", max_value_size=10, metadata={"by": "us"})
    await jet.update_bucket("cars", metadata={"by": "them"})
    await fails(MessageTooLargeError, bucket.put("a", bytes(11)))
    await jet.update_bucket("cars", max_value_size=20)
    await bucket.put("a", bytes(20))
    status = await bucket.status()
    assert (status.max_value_size, status.metadata["by"]) == (20, "them")
    assert not [name for name in status.metadata if name.startswith("pelton")]
    await jet.update_bucket("cars", max_value_size=-1)
    await bucket.put("a", bytes(10_000))
    assert (await bucket.status()).max_value_size == -1


@case
async def a_limit_that_another_client_has_set_is_kept(jet: Jet) -> None:
    config = (await jet.create_bucket("cars", max_value_size=100))._stream.config
    await jet.delete_bucket("cars")
    # As other clients make it: headers count.
    await jet.create_stream(msgspec.structs.replace(config, max_msg_size=100, metadata={}))
    bucket = await jet.create_bucket("cars", max_value_size=100)
    assert (await bucket.status()).max_value_size == 100
    await fails(MessageTooLargeError, bucket.put("a", bytes(101)))
    await fails(ApiError, jet.create_bucket("cars", max_value_size=99))
