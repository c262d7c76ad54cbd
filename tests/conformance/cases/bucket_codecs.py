"""Codecs: how keys and values are encoded (ADR-54), and what cannot be decoded."""

from __future__ import annotations

from typing import Any

import msgspec

from pelton.api import BucketDecodeError, BucketKeyNotFoundError, ConfigError
from pelton.buckets import Base64Codec, Bucket, ChainCodec, Codec, PathCodec, SplitCodec
from pelton.connect import Jet
from tests.conformance.cases.table import case, fails, lagging


class Car(msgspec.Struct):
    """A value of a user's type."""

    colour: str


class Mirrored(Codec):
    """Reversed keys and values, without wildcards."""

    def encode_key(self, key: str) -> str:
        """Reverse it."""
        return key[::-1]

    decode_key = encode_key

    def encode_value(self, value: bytes) -> bytes:
        """Reverse it."""
        return value[::-1]

    decode_value = encode_value


async def _keys(bucket: Bucket[Any], *filters: str) -> list[str]:
    listed = bucket.keys(*filters)
    return sorted([key async for key in listed])


@lagging("a reader may be made where what was written has not arrived")
async def base64_lets_keys_be_any_text(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", codec=Base64Codec(), history=5)
    revision = await cars.put("Acme Inc.contact ä", b"info@acme.com")
    await cars.create("b*.>", b"2")
    plain = await jet.bucket("cars")
    assert await _keys(plain) == ["QWNtZSBJbmM.Y29udGFjdCDDpA", "Yio.Pg"]
    assert (await plain.get("QWNtZSBJbmM.Y29udGFjdCDDpA")).value == b"aW5mb0BhY21lLmNvbQ"
    entry = await cars.get("Acme Inc.contact ä")
    assert (entry.key, entry.value, entry.revision) == ("Acme Inc.contact ä", b"info@acme.com", revision)
    assert (await cars.get("Acme Inc.contact ä", revision=revision)).value == b"info@acme.com"
    assert await _keys(cars) == ["Acme Inc.contact ä", "b*.>"]
    assert await _keys(cars, "Acme Inc.*") == ["Acme Inc.contact ä"]
    await cars.update("Acme Inc.contact ä", b"3", revision)
    assert [one.value for one in await cars.history("Acme Inc.contact ä")] == [b"info@acme.com", b"3"]
    await cars.purge("Acme Inc.contact ä")
    await cars.delete("b*.>")
    await fails(BucketKeyNotFoundError, cars.get("b*.>"))
    await fails(ConfigError, cars.put("a..b", b""))


@lagging("a reader may be made where what was written has not arrived")
async def paths_are_keys(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", codec=PathCodec())
    for path in ("/cars/1/colour", "cars/2/", "/", "_root_x/y"):
        await cars.put(path, path.encode())
    plain = await jet.bucket("cars")
    assert await _keys(plain) == ["_root_", "_root_.cars.1.colour", "_root_x.y", "cars.2"]
    assert await _keys(cars) == ["/", "/cars/1/colour", "_root_x/y", "cars/2"]
    assert await _keys(cars, "/cars/*/colour") == ["/cars/1/colour"]
    assert await _keys(cars, "cars/>") == ["cars/2"]
    assert (await cars.get("cars/2")).value == b"cars/2/"


@lagging("a reader may be made where what was written has not arrived")
async def codecs_follow_each_other(jet: Jet) -> None:
    chain = ChainCodec(PathCodec(), Base64Codec())
    cars = await jet.create_bucket("cars", codec=chain)
    await cars.put("/my car/1", b"red")
    plain = await jet.bucket("cars")
    assert await _keys(plain) == ["X3Jvb3Rf.bXkgY2Fy.MQ"]
    watching = cars.watch("/my car/*")
    entry = await anext(watching)
    assert entry is not None
    assert (entry.key, entry.value) == ("/my car/1", b"red")
    assert await anext(watching) is None
    await watching.aclose()
    await fails(ConfigError, _keys(await jet.bucket("cars", codec=ChainCodec(Mirrored(), Base64Codec())), "a.*"))


@case
async def keys_and_values_may_be_written_differently(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", type=Car, codec=SplitCodec(keys=PathCodec(), values=Base64Codec()))
    await cars.put("a/b", Car("red"))
    plain = await jet.bucket("cars")
    assert (await plain.get("a.b")).value == b"eyJjb2xvdXIiOiJyZWQifQ"
    assert (await cars.get("a/b")).value == Car("red")
    only_values = await jet.bucket("cars", codec=SplitCodec(values=Base64Codec()))
    assert (await only_values.get("a.b")).value == b'{"colour":"red"}'


@lagging("a reader may be made where what was written has not arrived")
async def one_of_their_own(jet: Jet) -> None:
    cars = await jet.create_bucket("cars", codec=Mirrored())
    await cars.put("a.bc", b"12")
    assert (await (await jet.bucket("cars")).get("cb.a")).value == b"21"
    assert await _keys(cars) == ["a.bc"]
    assert await _keys(cars, "a.bc") == ["a.bc"]
    await fails(ConfigError, _keys(cars, "a.*"))
    await cars.delete("a.bc")
    await cars.purge_deletes(older_than=0)
    assert (await cars.status()).values == 0


@lagging("a key is read where it lies: a replica may not have it yet")
async def what_is_not_of_the_type_is_said(jet: Jet) -> None:
    plain = await jet.create_bucket("cars", history=3)
    cars = await jet.bucket("cars", type=Car)
    await cars.put("a", Car("red"))
    revision = await plain.put("b", b"{}")
    await cars.put("c", Car("blue"))
    error = await fails(BucketDecodeError, cars.get("b"))
    assert (error.bucket, error.key, error.revision) == ("cars", "b", revision)
    assert "colour" in str(error)
    assert isinstance(error, ValueError)
    await fails(BucketDecodeError, cars.history("b"))
    assert await _keys(cars) == ["a", "b", "c"]
    watching = cars.watch()
    assert await anext(watching) is not None
    error = await fails(BucketDecodeError, anext(watching))
    watching = cars.watch(resume_from_revision=error.revision + 1)
    entry = await anext(watching)
    assert entry is not None
    assert entry.value == Car("blue")
    await watching.aclose()
    await cars.delete("b")
    await fails(BucketKeyNotFoundError, cars.get("b"))


@lagging("a reader may be made where what was written has not arrived")
async def what_is_not_in_the_codec_is_said(jet: Jet) -> None:
    plain = await jet.create_bucket("cars")
    await plain.put("YQ", b"1")
    await plain.put("a-b", b"Mg")
    cars = await jet.bucket("cars", codec=Base64Codec())
    error = await fails(BucketDecodeError, cars.get("a"))
    assert (error.key, error.revision) == ("a", 1)
    error = await fails(BucketDecodeError, _keys(cars))
    assert (error.key, error.revision) == ("a-b", 2)
    await fails(ConfigError, plain.put("a", "text"))  # type: ignore[arg-type]  # no bytes
    await plain.put("a", bytearray(b"1"))  # type: ignore[arg-type]  # as good as bytes
    assert (await plain.get("a")).value == b"1"
