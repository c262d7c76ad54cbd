"""A leaf and its hub take each other's streams while the wire is cut and either is killed: nothing is lost or doubled.

The judge reads only the record of this test: what was acknowledged at which side, and what the four streams hold.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tests.cluster.network import network
from tests.kit.clocks import CAN_STEP, GoClock, SharedClock
from tests.kit.nats_server import NatsServer, free_ports, nats_server
from tests.kit.served import ServedStore, served_store

_SETTLING_S = 60.0
# Of so many troubles, one is of the hub.
_HUB_ONE_IN = 10


class Held(NamedTuple):
    """A message of a stream."""

    seq: int
    subject: str
    number: int


class Record(msgspec.Struct):
    """What one side was told: the numbers that it has acknowledged, in their order."""

    acked: list[int] = msgspec.field(default_factory=list)


def judge(record: Record, origin: list[Held], copy: list[Held], *, is_mirror: bool) -> list[str]:
    """Return what is wrong with what was taken of a stream."""
    wrong = []
    numbers = [one.number for one in origin]
    if lost := set(record.acked) - set(numbers):
        wrong.append(f"acknowledged, but not stored: {sorted(lost)[:9]}")
    if is_mirror:
        if copy != origin:
            wrong.append(f"the mirror differs: {sorted(set(copy) ^ set(origin))[:9]}")
    elif [(one.subject, one.number) for one in copy] != [(one.subject, one.number) for one in origin]:
        taken = [one.number for one in copy]
        missing, extra = set(numbers) - set(taken), len(taken) - len(set(taken))
        wrong.append(
            f"the source differs: {sorted(missing)[:9]} missing, {extra} twice, {len(taken)} of {len(numbers)}"
        )
    return wrong


def test_the_judge_finds_what_is_lost_twice_or_in_another_order() -> None:
    held = [Held(seq, "o.1", seq) for seq in range(1, 6)]
    record = Record([1, 2, 3])
    assert judge(record, held, held, is_mirror=True) == judge(record, held, held, is_mirror=False) == []
    for copy in (held[:4], [*held, held[4]], [held[1], held[0], *held[2:]]):
        for is_mirror in (True, False):
            assert len(judge(record, held, copy, is_mirror=is_mirror)) == 1
    assert len(judge(Record([9]), held, held, is_mirror=True)) == 1


async def _ask(client: Client, verb: str, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(
        (await client.request(f"$JS.API.{verb}", json.dumps(fields).encode(), timeout=5)).data
    )
    assert "error" not in reply, reply["error"]
    return reply


@asynccontextmanager
async def _client(url: str | Sequence[str]) -> AsyncIterator[Client]:
    client = await nats.connect(
        url if isinstance(url, str) else [*url], max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore
    )
    try:
        yield client
    finally:
        await client.close()


async def _ignore(error: Exception) -> None:
    """Do nothing: losses are what is tested."""


async def _write(client: Client, subject: str, record: Record, random: Random, *, until: asyncio.Event) -> None:
    """Publish numbers, one after the other or many at once, and note those that are acknowledged."""
    number, js = 0, client.jetstream(timeout=2)

    async def publish(each: int) -> None:
        with suppress(NatsError, TimeoutError, ConnectionError):
            await js.publish(f"{subject}.{each % 7}", b"%d" % each)
            record.acked.append(each)

    while not until.is_set():
        some = range(number, number + random.choice((1, 1, 5, 200)))
        number = some.stop
        await asyncio.gather(*map(publish, some))
        await asyncio.sleep(random.random() / 50)


async def read_all(client: Client, stream: str) -> list[Held]:
    """Return the messages of a stream."""
    info = await _ask(client, f"STREAM.INFO.{stream}")
    found, state = list[Held](), info["state"]
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = client.new_inbox()
    heard = await client.subscribe(inbox, cb=arrived.put)
    config = {"deliver_subject": inbox, "ack_policy": "none", "deliver_policy": "all"}
    await _ask(client, f"CONSUMER.CREATE.{stream}", stream_name=stream, config=config)
    while len(found) < state["messages"]:
        async with asyncio.timeout(20):
            message = await arrived.get()
        found.append(Held(message.metadata.sequence.stream, message.subject, int(message.data)))
    await heard.unsubscribe()
    return found


async def _settled(here: Client, there: Client) -> None:
    """Wait until each copy has as many messages as its origin, and nothing is behind."""
    for _ in range(int(_SETTLING_S * 10)):
        with suppress(NatsError, TimeoutError):
            counts = [
                (await _ask(client, f"STREAM.INFO.{stream}"))["state"]["messages"]
                for client, stream in ((there, "O"), (here, "S"), (here, "M"), (here, "E"), (there, "ME"))
            ]
            if counts[0] == counts[1] == counts[2] and counts[3] == counts[4]:
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"O, S, M, E, ME hold {counts}, still")


async def _make_streams(here: Client, there: Client, replicas: int = 1) -> None:
    hub, edge = {"name": "O", "external": {"api": "$JS.hub.API"}}, {"name": "E", "external": {"api": "$JS.edge.API"}}
    await _ask(there, "STREAM.CREATE.O", name="O", subjects=["o.*"], num_replicas=replicas)
    await _ask(here, "STREAM.CREATE.E", name="E", subjects=["e.*"])
    await _ask(here, "STREAM.CREATE.S", name="S", sources=[hub])
    await _ask(here, "STREAM.CREATE.M", name="M", mirror=hub)
    await _ask(there, "STREAM.CREATE.ME", name="ME", mirror=edge, num_replicas=replicas)


async def _judge(here: Client, there: Client, at_hub: Record, at_edge: Record) -> list[str]:
    await _settled(here, there)
    origin, edge = await read_all(there, "O"), await read_all(here, "E")
    return [
        *judge(at_hub, origin, await read_all(here, "S"), is_mirror=False),
        *judge(at_hub, origin, await read_all(here, "M"), is_mirror=True),
        *judge(at_edge, edge, await read_all(there, "ME"), is_mirror=True),
    ]


class _Troubles:
    """Cuts the wire, or kills either side, at random."""

    def __init__(self, hub: NatsServer, leaf: ServedStore, net: Any, random: Random) -> None:
        self._hub = hub
        self._leaf = leaf
        self._net = net
        self._random = random
        self.done: dict[str, int] = {}

    async def make(self, number: int) -> None:
        """Make one: mostly the leaf is killed."""
        pause = self._random.random() / 2
        if number % _HUB_ONE_IN == _HUB_ONE_IN - 1:
            kind = "hub killed"
            await asyncio.to_thread(self._hub.kill)
            await asyncio.sleep(pause)
            await asyncio.to_thread(self._hub.start)
        elif number % 3 == 1:
            kind = "wire cut"
            self._net.cut()
            await asyncio.sleep(pause)
            self._net.mend()
        else:
            kind = "leaf killed"
            await asyncio.to_thread(self._leaf.kill)
            await asyncio.to_thread(self._leaf.start)
        self.done[kind] = self.done.get(kind, 0) + 1
        await asyncio.sleep(self._random.random())


@pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")
@pytest.mark.timeout(1800)
async def test_a_leaf_and_its_hub_through_troubles(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (port,), random = free_ports(1), Random(20261128)
    extra = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
    with nats_server(tmp_path / "hub", domain="hub", extra=extra) as hub:
        async with network(port) as net:
            flags = ("--leaf", f"nats://127.0.0.1:{net.port}", "--domain", "edge")
            with served_store(tmp_path / "edge.pelton", flags) as leaf:
                async with _client(leaf.url) as here, _client(hub.url) as there:
                    await _make_streams(here, there)
                    at_hub, at_edge, stop = Record(), Record(), asyncio.Event()
                    writers = [
                        asyncio.create_task(_write(there, "o", at_hub, Random(1), until=stop)),
                        asyncio.create_task(_write(here, "e", at_edge, Random(2), until=stop)),
                    ]
                    troubles = _Troubles(hub, leaf, net, random)
                    for number in range(int(request.config.getoption("--restarts"))):
                        await troubles.make(number)
                    stop.set()
                    await asyncio.gather(*writers)
                    assert await _judge(here, there, at_hub, at_edge) == []
                    print(troubles.done, len(at_hub.acked), len(at_edge.acked))


# By how many seconds a wall clock is ahead after a step.
_STEPS = (-86_400, -3_600, -5, 0, 5, 130, 86_400, 40 * 86_400)


async def _until_ahead(*streams: Any) -> None:
    """Wait until the last messages of streams, each after its client, were stored under clocks of another month."""
    for client, stream in zip(streams[::2], streams[1::2], strict=True):
        async with asyncio.timeout(_SETTLING_S):
            while (await _ask(client, f"STREAM.INFO.{stream}"))["state"]["last_ts"] < f"{datetime.now(UTC):%Y-%m-99}":
                await asyncio.sleep(0.1)


@pytest.mark.skipif(not CAN_STEP, reason="the clock of a nats-server is stepped in its memory")
@pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")
@pytest.mark.timeout(600)
async def test_the_clocks_of_a_leaf_and_its_hub_are_stepped(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (port,), random, ahead = free_ports(1), Random(20261129), tmp_path / "ahead"
    extra, at_leaf = f'leafnodes {{ listen: "127.0.0.1:{port}" }}', SharedClock(ahead)
    with nats_server(tmp_path / "hub", domain="hub", extra=extra) as hub:
        async with network(port) as net:
            flags = ("--leaf", f"nats://127.0.0.1:{net.port}", "--domain", "edge")
            leaf = ServedStore(tmp_path / "edge.pelton", flags, module="tests.kit.clocks", given=[str(ahead)])
            leaf.start()
            try:
                async with _client(leaf.url) as here, _client(hub.url) as there:
                    await _make_streams(here, there)
                    at_hub, at_edge, stop = Record(), Record(), asyncio.Event()
                    writers = [
                        asyncio.create_task(_write(there, "o", at_hub, Random(1), until=stop)),
                        asyncio.create_task(_write(here, "e", at_edge, Random(2), until=stop)),
                    ]
                    troubles, clock = _Troubles(hub, leaf, net, random), GoClock(hub.pid)
                    for number in range(int(request.config.getoption("--restarts"))):
                        if number % 2:
                            clock.jump_to(random.choice(_STEPS))
                        else:
                            at_leaf.jump_to(random.choice(_STEPS) * 10**9)
                        await asyncio.sleep(random.random() / 2)
                        if number % 3 == 2:
                            await troubles.make(number // 3 % (_HUB_ONE_IN - 1))
                    clock.jump_to(_STEPS[-1])
                    at_leaf.jump_to(_STEPS[-1] * 10**9)
                    await _until_ahead(there, "O", here, "E")
                    stop.set()
                    await asyncio.gather(*writers)
                    assert await _judge(here, there, at_hub, at_edge) == []
                    print(troubles.done, len(at_hub.acked), len(at_edge.acked))
            finally:
                leaf.kill()


_WHILE_APART = 100_000


async def _publish_many(client: Client, subject: str, record: Record) -> None:
    js = client.jetstream(timeout=60)
    for first in range(0, _WHILE_APART, 1000):
        numbers = range(first, first + 1000)
        await asyncio.gather(*(js.publish(f"{subject}.{number % 7}", b"%d" % number) for number in numbers))
        record.acked += numbers


@pytest.mark.timeout(600)
async def test_a_hundred_thousand_messages_of_each_side_while_they_are_apart(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    extra = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
    with nats_server(tmp_path / "hub", domain="hub", extra=extra) as hub:
        async with network(port) as net:
            flags = ("--leaf", f"nats://127.0.0.1:{net.port}", "--domain", "edge")
            with served_store(tmp_path / "edge.pelton", flags) as leaf:
                async with _client(leaf.url) as here, _client(hub.url) as there:
                    at_hub, at_edge = Record(), Record()
                    net.cut()
                    await _make_streams(here, there)
                    await asyncio.gather(_publish_many(there, "o", at_hub), _publish_many(here, "e", at_edge))
                    begun = time.monotonic()
                    net.mend()
                    await _settled(here, there)
                    print(f"caught up in {time.monotonic() - begun:.1f} s")
                    assert await _judge(here, there, at_hub, at_edge) == []


@contextmanager
def _three_hubs(home: Path) -> Iterator[tuple[dict[str, NatsServer], list[int]]]:
    """Run a cluster whose servers all take leaf nodes; return them by their names, and the ports for that."""
    ports, leafs = (free := free_ports(6))[:3], free[3:]
    servers = {}
    for index, (port, leaf) in enumerate(zip(ports, leafs, strict=True)):
        routes = json.dumps([f"nats-route://127.0.0.1:{other}" for other in ports if other != port])
        extra = (
            f'cluster {{ name: hub, listen: "127.0.0.1:{port}", routes: {routes} }}\n'
            f'leafnodes {{ listen: "127.0.0.1:{leaf}" }}'
        )
        servers[f"n{index}"] = NatsServer(home / f"n{index}", domain="hub", name=f"n{index}", extra=extra)
    try:
        for server in servers.values():
            server.start()
        yield servers, leafs
    finally:
        for server in servers.values():
            server.kill()


async def _elected(there: Client, here: Client) -> None:
    """Make the streams once the cluster has a leader."""
    for _ in range(100):
        try:
            await _make_streams(here, there, replicas=3)
        except (AssertionError, NatsError, TimeoutError):
            await asyncio.sleep(0.2)
        else:
            return
    raise AssertionError("the cluster has no leader, still")


@pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")
@pytest.mark.timeout(600)
async def test_the_hub_of_three_that_a_leaf_is_connected_to_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with _three_hubs(tmp_path) as (servers, leafs):
        urls = json.dumps([f"nats://127.0.0.1:{port}" for port in leafs])
        config = tmp_path / "edge.conf"
        config.write_text(f"leafnodes {{ remotes: [{{ urls: {urls} }}] }}\njetstream {{ domain: edge }}\n")
        with served_store(tmp_path / "edge.pelton", ("-c", str(config))) as leaf:
            hubs = [server.url for server in servers.values()]
            async with _client(leaf.url) as here, _client(hubs) as there:
                await _elected(there, here)
                at_hub, at_edge, stop = Record(), Record(), asyncio.Event()
                writers = [
                    asyncio.create_task(_write(there, "o", at_hub, Random(1), until=stop)),
                    asyncio.create_task(_write(here, "e", at_edge, Random(2), until=stop)),
                ]
                for _ in range(1 + int(request.config.getoption("--restarts")) // 60):
                    # One of them is the one that it is connected to, which is another then.
                    for server in servers.values():
                        await asyncio.sleep(1)
                        await asyncio.to_thread(server.kill)
                        await asyncio.sleep(1)
                        await asyncio.to_thread(server.start)
                stop.set()
                await asyncio.gather(*writers)
                assert await _judge(here, there, at_hub, at_edge) == []
                print(len(at_hub.acked), len(at_edge.acked))
