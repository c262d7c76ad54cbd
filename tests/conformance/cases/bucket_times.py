"""Keys of a bucket that expire, and delete markers that do (ADR-48)."""

from __future__ import annotations

from typing import Any

from pelton.api import BucketKeyExistsError, BucketKeyNotFoundError, ConfigError, WrongLastSequenceError, headers
from pelton.buckets import Bucket
from pelton.connect import Jet
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case, fails, lagging, refused


async def _ttl(jet: Jet, key: str) -> str | None:
    stored = await (await jet.stream("KV_cars")).get_last_message(f"$KV.cars.{key}")
    return headers.first(stored.hdrs, "Nats-TTL")


async def _held(bucket: Bucket[Any], key: str) -> Any:
    try:
        return (await bucket.get(key)).value
    except BucketKeyNotFoundError:
        return None


@lagging("a key is read where it lies: a replica may not have it yet")
async def each_way_of_writing_may_give_a_time_to_live(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", limit_marker_ttl=5)
    revision = await bucket.put("put", b"1", ttl=100)
    assert await _ttl(jet, "put") == "1m40s"
    await bucket.update("put", b"2", revision, ttl=200)
    assert await _ttl(jet, "put") == "3m20s"
    await bucket.create("create", b"3", ttl=300)
    assert await _ttl(jet, "create") == "5m0s"
    await bucket.purge("create", ttl=400)
    assert await _ttl(jet, "create") == "6m40s"
    await bucket.create("create", b"4", ttl=500)
    assert await _ttl(jet, "create") == "8m20s"
    await bucket.put("create", b"5")
    assert await _ttl(jet, "create") is None


@case
async def only_where_the_bucket_allows_it(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars")
    await refused(10166, bucket.put("a", b"1", ttl=5))
    await refused(10166, bucket.create("a", b"1", ttl=5))
    await refused(10166, bucket.update("a", b"1", 0, ttl=5))
    await refused(10166, bucket.purge("a", ttl=5))
    await fails(ConfigError, bucket.put("a", b"1", ttl=-1))
    await fails(ConfigError, bucket.put("a", b"1", ttl=0.5))
    assert (await bucket.status()).values == 0
    await jet.update_bucket("cars", limit_marker_ttl=1)
    await bucket.put("a", b"1", ttl=5)
    assert (await bucket.status()).limit_marker_ttl == 1


@lagging("a reader may be made where what was written has not arrived")
async def a_key_that_ends_is_told_and_can_be_made_again(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", limit_marker_ttl=100)
    await bucket.put("a", b"1", ttl=1)
    await bucket.put("b", b"stays")
    watching = bucket.watch("a", updates_only=True)
    assert await anext(watching) is None
    entry = await anext(watching)
    assert entry is not None
    assert (entry.operation, entry.revision, entry.value) == ("purge", 3, None)
    await watching.aclose()
    await fails(BucketKeyNotFoundError, bucket.get("a"))
    await fails(WrongLastSequenceError, bucket.update("a", b"2", 1))
    assert await bucket.create("a", b"2") == 4
    await fails(BucketKeyExistsError, bucket.create("a", b"3"))


@case
async def with_a_history_no_key_ends_before_its_marker_would(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", limit_marker_ttl=100, history=3)
    revision = await bucket.put("a", b"1", ttl=1)
    stored = await (await jet.stream("KV_cars")).get_message(revision)
    assert headers.first(stored.hdrs, "Nats-TTL") == "100"


@case
async def what_ends_shows_what_was_there_before(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", limit_marker_ttl=1, history=3)
    await bucket.put("a", b"lasts")
    await bucket.put("a", b"ends", ttl=1)
    await eventually(lambda: _held(bucket, "a"), b"lasts")


@lagging("a key is read where it lies: a replica may not have it yet")
async def a_mark_of_deletion_may_end(jet: Jet) -> None:
    bucket = await jet.create_bucket("cars", limit_marker_ttl=1)
    await bucket.put("a", b"1")
    await bucket.purge("a", ttl=1)
    assert [entry.operation for entry in await bucket.history("a")] == ["purge"]

    async def values() -> int:
        return (await bucket.status()).values

    await eventually(values, 0)
    assert await bucket.update("a", b"2", 0) == 3
