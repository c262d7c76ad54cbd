"""Keys of buckets written in transactions: together with everything else or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pelton


class Car(msgspec.Struct):
    colour: str


@pytest.fixture(params=["file", "memory"])
async def jet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(str(tmp_path / "a") if request.param == "file" else "memory:") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        yield jet


async def _keys(bucket: pelton.Bucket[Any]) -> list[str]:
    return [key async for key in bucket.keys()]  # noqa: SIM118  # it is no mapping


async def test_keys_are_written_with_the_rest(jet: pelton.Jet) -> None:
    cars = await jet.create_bucket("cars", type=Car, history=5)
    await cars.put("old", Car("rust"))
    async with jet.transaction() as tx:
        inside = tx.bucket(cars)
        first = await inside.create("beetle", Car("red"))
        assert await inside.update("beetle", Car("green"), first) == first + 1
        assert (await inside.get("beetle")).value == Car("green") == (await cars.get("beetle")).value
        await inside.delete("old", revision=1)
        await inside.put("van", Car("white"))
        await inside.purge("van")
        assert await inside.create("van", Car("blue"))
        await tx.publish("s.1")
        await tx.sql("CREATE TABLE paints(colour)")
    assert [entry.value for entry in await cars.history("beetle")] == [Car("red"), Car("green")]
    assert sorted(await _keys(cars)) == ["beetle", "van"]
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
        async with jet.transaction() as tx:
            await tx.bucket(cars).put("beetle", Car("black"))
            await tx.publish("s.2")
            1 / 0  # noqa: B018  # it raises
    assert (await cars.get("beetle")).value == Car("green")
    assert (await (await jet.stream("s")).info()).state.messages == 1


async def test_a_conflict_is_told_and_the_rest_goes_on(jet: pelton.Jet) -> None:
    cars = await jet.create_bucket("cars")
    revision = await cars.put("beetle", b"red")
    async with jet.transaction() as tx:
        inside = tx.bucket(cars)
        await inside.update("beetle", b"green", revision)
        with pytest.raises(pelton.WrongLastSequenceError) as refused:
            await inside.update("beetle", b"black", revision)
        assert refused.value.seq == revision + 1
        with pytest.raises(pelton.BucketKeyExistsError):
            await inside.create("beetle", b"black")
        with pytest.raises(pelton.WrongLastSequenceError):
            await inside.delete("beetle", revision=revision)
        with pytest.raises(pelton.WrongLastSequenceError):  # noqa: PT012  # the whole block raises
            async with tx.savepoint():
                await inside.put("van", b"white")
                await inside.update("beetle", b"black", 99)
    assert (await cars.get("beetle")).value == b"green"
    assert await _keys(cars) == ["beetle"]


async def test_watchers_hear_of_it_after_the_commit(jet: pelton.Jet) -> None:
    cars = await jet.create_bucket("cars")
    watch = cars.watch()
    assert await anext(watch) is None
    async with jet.transaction() as tx:
        for number in range(3):
            await tx.bucket(cars).put("beetle", b"%d" % number)
    entries = [await anext(watch) for _ in range(3)]
    assert [entry and entry.value for entry in entries] == [b"0", b"1", b"2"]
    await watch.aclose()


async def test_a_bucket_of_another_opening_is_refused(jet: pelton.Jet) -> None:
    async with pelton.open("memory:") as other:
        cars = await other.create_bucket("cars")
        async with jet.transaction() as tx:
            with pytest.raises(pelton.ConfigError, match="through another handle"):
                tx.bucket(cars)


async def test_what_is_no_write_of_a_key_is_refused_within(jet: pelton.Jet) -> None:
    cars = await jet.create_bucket("cars")
    async with jet.transaction() as tx:
        await tx.bucket(cars).delete("beetle")
        with pytest.raises(pelton.TransactionError, match=r"tx\.bucket"):
            await cars.put("beetle", b"red")
        with pytest.raises(pelton.TransactionError):
            await tx.bucket(cars).purge_deletes()


async def test_a_value_that_is_too_large_is_refused_within(jet: pelton.Jet) -> None:
    cars = await jet.create_bucket("cars", max_value_size=10)
    async with jet.transaction() as tx:
        with pytest.raises(pelton.MessageTooLargeError, match="max_value_size is 10"):
            await tx.bucket(cars).put("a", bytes(11))
        await tx.bucket(cars).put("a", bytes(10))
    assert (await cars.get("a")).value == bytes(10)


def test_the_blocking_face() -> None:
    with pelton.sync.open("memory:") as jet:
        cars = jet.create_bucket("cars", type=Car)
        with jet.transaction() as tx:
            first = tx.bucket(cars).create("beetle", Car("red"))
            with pytest.raises(pelton.WrongLastSequenceError):
                tx.bucket(cars).update("beetle", Car("green"), first + 1)
            tx.bucket(cars).put("van", Car("blue"))
        assert sorted(cars.keys()) == ["beetle", "van"]
