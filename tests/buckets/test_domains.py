"""Buckets in another JetStream domain of a cluster: read and written there, and mirrored here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

import pelton
from tests.conformance.cases.eventually import eventually
from tests.kit.nats_server import free_ports, nats_server


@pytest.fixture(scope="module")
def leaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the domain "leaf", which is connected to one of the domain "hub"."""
    home = tmp_path_factory.mktemp("domains")
    (port,) = free_ports(1)
    remote = f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}" }}] }}'
    with (
        nats_server(home / "hub", domain="hub", extra=f'leafnodes {{ listen: "127.0.0.1:{port}" }}'),
        nats_server(home / "leaf", domain="leaf", extra=remote) as server,
    ):
        yield server.url


@pytest.fixture
async def hub(leaf: str) -> AsyncIterator[pelton.Jet]:
    # The connection between the two takes some time.
    await eventually(lambda: _answers(leaf), True)
    async with pelton.open(leaf, domain="hub") as jet:
        yield jet
        for name in await jet.bucket_names():
            await jet.delete_bucket(name)


async def _answers(leaf: str) -> bool:
    try:
        async with pelton.open(leaf, domain="hub") as jet:
            await jet.account_info()
    except pelton.PeltonError:
        return False
    return True


async def _held(bucket: pelton.Bucket[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    listed = bucket.keys()
    for key in [key async for key in listed]:
        # A purge there may arrive here after the keys were listed.
        with suppress(pelton.BucketKeyNotFoundError):
            found[key] = (await bucket.get(key)).value
    return found


async def test_what_lies_there_is_written_there(hub: pelton.Jet) -> None:
    cars = await hub.create_bucket("cars", history=2)
    revision = await cars.create("a", b"1")
    await cars.update("a", b"2", revision)
    with pytest.raises(pelton.WrongLastSequenceError):
        await cars.update("a", b"3", revision)
    assert await _held(cars) == {"a": b"2"}
    await cars.delete("a")
    assert await cars.create("a", b"4") == 4


async def test_a_mirror_here_is_written_there(hub: pelton.Jet, leaf: str) -> None:
    cars = await hub.create_bucket("cars")
    await cars.put("a", b"1")
    async with pelton.open(leaf) as jet:
        copy = await jet.create_bucket("copy", mirror={"name": "cars", "domain": "hub"})
        await eventually(lambda: _held(copy), {"a": b"1"})
        await copy.put("b", b"2")
        assert (await cars.get("b")).value == b"2"
        await eventually(lambda: _held(copy), {"a": b"1", "b": b"2"})
        await copy.purge("a")
        await eventually(lambda: _held(copy), {"b": b"2"})
        await copy.create("a", b"3")
        await eventually(lambda: _held(copy), {"a": b"3", "b": b"2"})
        await jet.delete_bucket("copy")


async def test_sources_come_from_there(hub: pelton.Jet, leaf: str) -> None:
    cars = await hub.create_bucket("cars")
    async with pelton.open(leaf) as jet:
        both = await jet.create_bucket("both", sources=[{"name": "cars", "domain": "hub", "keys": "a.*"}])
        await cars.put("a.1", b"1")
        await cars.put("b.1", b"2")
        await both.put("own", b"3")
        await eventually(lambda: _held(both), {"a.1": b"1", "own": b"3"})
        assert await _held(cars) == {"a.1": b"1", "b.1": b"2"}
        await jet.delete_bucket("both")
