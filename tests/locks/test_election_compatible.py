"""Candidates of nats-kv-leader-elect and ours on one bucket of a real server: its operations, done with nats-py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import nats.js.api
import nats.js.errors
import pytest

import pelton
from pelton import Jet
from tests.kit.nats_server import NatsServer, nats_server

SOON = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def jet(server: NatsServer) -> AsyncIterator[Jet]:
    async with pelton.open(server.url) as jet:
        yield jet
        for name in await jet.bucket_names():
            await jet.delete_bucket(name)


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[Any]:
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


async def their_bucket(js: Any, ttl: float) -> Any:
    """Make the bucket as ``nats kv add --ttl`` does."""
    return await js.create_key_value(nats.js.api.KeyValueConfig(bucket="ELECTIONS", ttl=ttl))


async def test_ours_waits_while_theirs_leads_and_takes_over_when_it_died(jet: Jet, js: Any) -> None:
    theirs = await their_bucket(js, 3)
    revision = await theirs.create("demo", b"worker 1")
    campaigns = list[str]()
    ours = jet.elect("demo", bucket="ELECTIONS", name="ours", on_campaign=campaigns.append)
    task = asyncio.create_task(ours.__aenter__())
    while ours.state != "candidate":
        await asyncio.sleep(0)
    revision = await theirs.update("demo", b"worker 1", revision)
    leader = await ours.leader()
    assert leader is not None
    assert (leader.name, leader.token, leader.since, leader.revision) == ("worker 1", 0, "", revision)
    term = await asyncio.wait_for(task, SOON)
    # It tried once: not while theirs was renewed.
    assert campaigns[0] == "candidate"
    assert term.token > revision
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await theirs.update("demo", b"worker 1", revision)
    assert (await theirs.get("demo")).value == b"ours"
    await ours.__aexit__(None, None, None)


async def test_theirs_cannot_win_while_ours_leads_and_can_when_it_stepped_down(jet: Jet, js: Any) -> None:
    theirs = await their_bucket(js, 3600)
    ours = jet.elect("demo", bucket="ELECTIONS", name="ours", strict=True)
    async with asyncio.timeout(SOON), ours as term:
        assert (await theirs.get("demo")).value == b"ours"
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await theirs.create("demo", b"worker 1")
    revision = await theirs.create("demo", b"worker 1")
    assert revision > term.token
    assert await theirs.update("demo", b"worker 1", revision) > revision


async def test_ours_stands_down_when_theirs_has_won(jet: Jet, js: Any) -> None:
    theirs = await their_bucket(js, 3600)
    ours = jet.elect("demo", bucket="ELECTIONS")

    async def wins() -> None:
        await theirs.delete("demo")
        await theirs.create("demo", b"worker 1")

    async def lead() -> None:
        async with asyncio.timeout(SOON), ours:
            winning.append(asyncio.create_task(wins()))
            await asyncio.Event().wait()

    winning = list[asyncio.Task[None]]()
    with pytest.raises(pelton.TermLostError):
        await lead()
    await winning[0]
    assert (await theirs.get("demo")).value == b"worker 1"


async def test_a_bucket_of_ours_serves_theirs(jet: Jet, js: Any) -> None:
    async with asyncio.timeout(SOON), jet.elect("demo", ttl=60):
        pass
    theirs = await js.key_value("ELECTION_demo")
    status = await theirs.status()
    assert (status.ttl, status.history) == (60, 1)
    revision = await theirs.create("demo", b"worker 1")
    assert (await theirs.update("demo", b"worker 1", revision)) == revision + 1


async def test_their_win_in_a_bucket_made_for_a_moment_is_waited_out(jet: Jet, js: Any) -> None:
    """Their key deleted by hand: its leader does not know yet, so our win is not announced before its term ends."""
    theirs = await their_bucket(js, 2)
    await theirs.create("demo", b"worker 1")
    begin = asyncio.get_running_loop().time()
    await theirs.delete("demo")
    async with asyncio.timeout(SOON), jet.elect("demo", bucket="ELECTIONS") as term:
        assert asyncio.get_running_loop().time() - begin >= 0.95 * 2
        assert term.is_held
