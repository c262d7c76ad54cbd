"""Counters that are fed to another store: they reach the values of their origin (ADR-49)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pelton
from pelton.testing import manual_runtime
from tests.kit.nats_server import nats_server


@pytest.fixture(params=["file", "cluster"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[pelton.Jet, pelton.Jet]]:
    """An embedded store and another one, or a server, each with a stream that counts."""
    async with pelton.open(str(tmp_path / "edge")) as edge:
        await _counting(edge)
        if request.param == "file":
            async with pelton.open(str(tmp_path / "hub")) as hub:
                yield edge, await _counting(hub)
        else:
            with nats_server(tmp_path / "nats") as server:
                async with pelton.open(server.url) as hub:
                    yield edge, await _counting(hub)


async def _counting(jet: pelton.Jet) -> pelton.Jet:
    await jet.create_stream("C", subjects=["c.*"], allow_msg_counter=True)
    return jet


async def totals(jet: pelton.Jet, *subjects: str) -> list[int]:
    stream = await jet.stream("C")
    return [await stream.counter(subject) for subject in subjects]


async def test_increments_are_carried(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    for delta in (1, 5, -2, 10**30):
        await edge.add("c.a", delta)
    await edge.add("c.b", 7)
    assert await edge.feed("C", hub, until_empty=True) == 5
    await edge.add("c.a", 3)
    assert await edge.feed("C", hub, until_empty=True) == 1
    assert await totals(hub, "c.a", "c.b") == [10**30 + 7, 7] == await totals(edge, "c.a", "c.b")
    last = await (await hub.stream("C")).get_last_message("c.a")
    assert last.headers["Nats-Incr"].lstrip("+") == "3"


async def test_what_limits_removed_is_made_up_for(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await edge.update_stream("C", max_msgs_per_subject=1)
    for _ in range(2):
        for _ in range(10):
            await edge.add("c.a", 4)
        assert await edge.feed("C", hub, until_empty=True) == 1
    assert await totals(hub, "c.a") == [80]


async def test_others_add_to_the_same_counter(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    for _ in range(2):
        await edge.add("c.a", 4)
        await edge.feed("C", hub, until_empty=True)
        await hub.add("c.a", 1000)
    assert await totals(hub, "c.a") == [2008]


async def test_a_doubt_counts_nothing_twice(tmp_path: Path) -> None:
    runtime = manual_runtime()
    paths = [str(tmp_path / name) for name in ("edge", "hub")]
    async with pelton.open(paths[0], runtime=runtime) as edge, pelton.open(paths[1], runtime=runtime) as hub:
        for jet in (edge, hub):
            await _counting(jet)
        for _ in range(5):
            await edge.add("c.a", 2)

        async def dies(*args: object) -> None:
            raise pelton.StoreClosedError("edge", "killed")

        kept, edge.backend.ack = edge.backend.ack, dies  # type: ignore[method-assign, assignment]  # of this one store
        with pytest.raises(pelton.StoreClosedError):
            await edge.feed("C", hub, until_empty=True)
        edge.backend.ack = kept  # type: ignore[method-assign]  # as it was
        runtime.clock.advance(7200)
        await edge.add("c.a", 1)
        await edge.feed("C", hub, until_empty=True)
        assert await totals(hub, "c.a") == [11]


async def test_a_stream_that_does_not_count_takes_no_counter(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await edge.add("c.a", 1)
    await hub.delete_stream("C")
    await hub.create_stream("C", subjects=["c.*"])
    with pytest.raises(pelton.ApiError) as refused:
        await edge.feed("C", hub, until_empty=True)
    assert refused.value.err_code == 10168
