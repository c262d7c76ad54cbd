"""Buckets with sources or mirrors, republished changes, and changed settings (ADR-8)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pelton.api import BucketKeyNotFoundError, BucketNotFoundError, ConfigError, WrongLastSequenceError
from pelton.buckets import Bucket
from pelton.connect import Jet
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case, fails, lagging, refused

_GRACE_S = 10


async def _held(bucket: Bucket[Any]) -> dict[str, Any]:
    listed = bucket.keys()
    found = {}
    for key in sorted([key async for key in listed]):
        # A copy may have gone on since its keys were listed: then this is not yet what is waited for.
        with suppress(BucketKeyNotFoundError):
            found[key] = (await bucket.get(key)).value
    return found


@lagging("a reader may be made where what was written has not arrived")
async def a_mirror_reads_here_and_writes_there(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", history=3)
    await cars.put("a", b"1")
    copy = await jet.create_bucket("copy", mirror="cars", history=3)
    await eventually(lambda: _held(copy), {"a": b"1"})
    config = (await jet.stream("KV_copy")).config
    assert (config.subjects, config.mirror_direct, config.mirror and config.mirror.name) == ((), True, "KV_cars")
    revision = await copy.put("b", b"2")
    # Its mirror may answer for the origin, and be behind.
    await eventually(lambda: _held(cars), {"a": b"1", "b": b"2"})
    assert (await cars.get("b")).revision == revision
    await eventually(lambda: _held(copy), {"a": b"1", "b": b"2"})
    await copy.update("b", b"3", revision)
    await fails(WrongLastSequenceError, copy.update("b", b"4", revision))
    await copy.delete("a")
    await eventually(lambda: _held(copy), {"b": b"3"})
    await copy.create("a", b"5")
    await eventually(lambda: _held(copy), {"a": b"5", "b": b"3"})
    assert [entry.value for entry in await copy.history("b")] == [b"2", b"3"]
    status = await copy.status()
    assert (status.mirror, status.sources, status.bucket) == ("cars", (), "copy")


@lagging("a reader may be made where what was written has not arrived")
async def a_mirror_tells_watchers(jet: Jet) -> None:
    cars = await jet.create_bucket("cars")
    copy = await jet.create_bucket("copy", mirror="cars")
    watching = copy.watch("a.*")
    assert await anext(watching) is None
    await cars.put("a.1", b"1")
    await cars.put("b.1", b"2")
    first = await anext(watching)
    await copy.delete("a.1")
    second = await anext(watching)
    assert first is not None
    assert second is not None
    assert (first.bucket, first.key, first.value, second.operation) == ("copy", "a.1", b"1", "delete")
    await watching.aclose()


@case
async def deletes_are_purged_at_the_origin(jet: Jet) -> None:
    cars = await jet.create_bucket("cars")
    copy = await jet.create_bucket("copy", mirror="cars")
    await cars.put("a", b"1")
    await cars.delete("a")

    async def mirrored() -> int:
        return (await (await jet.stream("KV_copy")).info()).state.last_seq

    await eventually(mirrored, 2)
    await copy.purge_deletes(older_than=0)
    assert (await cars.status()).values == 0


@lagging("a reader may be made where what was written has not arrived")
async def a_mirror_of_some_keys(jet: Jet) -> None:
    cars = await jet.create_bucket("cars")
    await jet.create_bucket("few", mirror={"name": "cars", "keys": "a.*"})
    await jet.create_bucket("some", mirror={"name": "cars", "keys": ["a.*", "b.>"]})
    for key in ("a.1", "b.1.2", "c"):
        await cars.put(key, key.encode())
    few, some = await jet.bucket("few"), await jet.bucket("some")
    await eventually(lambda: _held(few), {"a.1": b"a.1"})
    await eventually(lambda: _held(some), {"a.1": b"a.1", "b.1.2": b"b.1.2"})


@lagging("a reader may be made where what was written has not arrived")
async def sources_bring_their_keys_under_this_name(jet: Jet) -> None:
    cars, bikes = await jet.create_bucket("cars"), await jet.create_bucket("bikes")
    both = await jet.create_bucket("both", sources=["cars", {"name": "bikes", "keys": ["new.*", "old.*.>"]}])
    await cars.put("a", b"1")
    await bikes.put("new.a", b"2")
    await bikes.put("old.a.b", b"3")
    await bikes.put("other", b"4")
    await eventually(lambda: _held(both), {"a": b"1", "new.a": b"2", "old.a.b": b"3"})
    await both.put("own", b"5")
    await cars.delete("a")
    await eventually(lambda: _held(both), {"new.a": b"2", "old.a.b": b"3", "own": b"5"})
    assert (await both.status()).sources == ("cars", "bikes")
    assert [key async for key in cars.keys("own")] == []


@case
async def what_names_no_bucket(jet: Jet) -> None:
    for mirror in ("", {}, {"name": ""}, {"name": "a b"}, {"name": "cars", "keys": "a..b"}, {"name": 5}):
        await fails(ConfigError, jet.create_bucket("copy", mirror=mirror))
    await fails(ConfigError, jet.create_bucket("copy", histroy=3))  # type: ignore[call-overload]  # misspelt
    await fails(ConfigError, jet.create_bucket("copy", history="3"))  # type: ignore[call-overload]  # no number
    await fails(ConfigError, jet.create_bucket("copy", sources=[{"name": "cars", "filter": "a"}]))
    assert await jet.bucket_names() == []


@lagging("a reader may be made where what was written has not arrived")
async def settings_can_be_changed(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", history=3, ttl=60, max_value_size=100)
    for value in (b"1", b"2", b"3"):
        await cars.put("a", value)
    changed = await jet.update_bucket("cars", history=2, ttl=3600, description="all cars", max_bytes=10_000)
    status = await changed.status()
    assert (status.history, status.ttl, status.description) == (2, 3600, "all cars")
    assert (status.max_bytes, status.max_value_size, status.values) == (10_000, 100, 2)
    assert (await jet.stream("KV_cars")).config.duplicate_window == 120
    assert [entry.value for entry in await cars.history("a")] == [b"2", b"3"]
    await jet.update_bucket("cars", ttl=10)
    assert (await jet.stream("KV_cars")).config.duplicate_window == 10
    await fails(BucketNotFoundError, jet.update_bucket("bikes", history=2))
    await fails(ConfigError, jet.update_bucket("cars", history=0))
    await refused(10052, jet.update_bucket("cars", storage="memory"))


@case
async def what_is_put_is_said_again(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", republish={"src": ">", "dest": "said.>"})
    async with await jet.subscribe("said.>") as listening:
        await cars.put("a", b"1")
        heard = await listening.next(timeout=_GRACE_S)
        assert heard is not None
        assert (heard.subject, heard.data) == ("said.$KV.cars.a", b"1")


@case
async def where_a_cluster_keeps_it_is_kept(jet: Jet) -> None:
    await jet.create_bucket("cars", placement={"tags": ["ssd"]}, metadata={"owner": "garage"}, storage="memory")
    config = (await jet.stream("KV_cars")).config
    assert config.placement is not None
    assert (config.placement.tags, config.storage) == (("ssd",), "memory")
    assert config.metadata["owner"] == "garage"
    assert (await (await jet.bucket("cars")).status()).metadata["owner"] == "garage"
