"""A leaf node of a real hub: what crosses, and what does not. A nats-server as leaf node is the oracle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.conformance.cases.eventually import eventually
from tests.kit.nats_server import free_ports, nats_server
from tests.kit.served import served_store


class Pair(NamedTuple):
    """The addresses of a leaf and of its hub."""

    edge: str
    hub: str
    is_pelton: bool


@pytest.fixture(scope="module", params=["nats", "pelton"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home: Path = tmp_path_factory.mktemp("leaf")
    (port,) = free_ports(1)
    remotes = (
        f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}", '
        'deny_imports: ["secret.in.>"], deny_exports: ["secret.out.>"] }] }\n'
    )
    with nats_server(home / "hub", domain="hub", extra=f'leafnodes {{ listen: "127.0.0.1:{port}" }}') as hub:
        if request.param == "nats":
            with nats_server(home / "edge", domain="edge", extra=remotes) as theirs:
                yield Pair(theirs.url, hub.url, is_pelton=False)
            return
        (home / "edge.conf").write_text(f"server_name: edge\n{remotes}jetstream {{ domain: edge }}\n")
        with served_store(home / "edge.pelton", ("-c", str(home / "edge.conf"))) as ours:
            yield Pair(ours.url, hub.url, is_pelton=True)


@pytest.fixture
async def edge(pair: Pair) -> AsyncIterator[Client]:
    async with await nats.connect(pair.edge) as client:
        yield client


@pytest.fixture
async def hub(pair: Pair, edge: Client) -> AsyncIterator[Client]:
    async with await nats.connect(pair.hub) as client:
        await linked(edge, client)
        yield client
        for api in ("$JS.API", "$JS.edge.API"):
            listed = json.loads((await client.request(f"{api}.STREAM.NAMES", b"")).data)
            for name in listed["streams"] or ():
                await client.request(f"{api}.STREAM.DELETE.{name}", b"")


async def linked(edge: Client, hub: Client) -> None:
    """Wait until what is asked at either side is answered at the other: interest is shared."""
    await shared(edge, hub)
    await shared(hub, edge)


async def shared(asked: Client, asks: Client) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"")

    subject = f"shared.{asks.new_inbox()}"
    heard = await asked.subscribe(subject, cb=answer)

    async def is_answered() -> bool:
        with suppress(NoRespondersError):
            return (await asks.request(subject, b"", timeout=5)).data == b""
        return False

    await eventually(is_answered, True)
    await heard.unsubscribe()


async def heard_by(client: Client, subject: str, queue: str = "") -> asyncio.Queue[Msg]:
    messages: asyncio.Queue[Msg] = asyncio.Queue()
    await client.subscribe(subject, queue, cb=messages.put)
    return messages


async def next_of(messages: asyncio.Queue[Msg]) -> Msg:
    async with asyncio.timeout(10):
        return await messages.get()


async def test_messages_cross_both_ways(edge: Client, hub: Client) -> None:
    for here, there in ((edge, hub), (hub, edge)):
        messages = await heard_by(here, "news.>")
        await linked(edge, hub)
        await there.publish("news.plain", b"1")
        await there.publish("news.reply", b"2", reply="back")
        await there.publish("news.headers", b"3", reply="back", headers={"A": "b"})
        await there.publish("news.large", bytes(900_000), headers={"A": "x" * 5000})
        got = [await next_of(messages) for _ in range(4)]
        assert [(one.subject, one.reply, one.headers) for one in got] == [
            ("news.plain", "", None),
            ("news.reply", "back", None),
            ("news.headers", "back", {"A": "b"}),
            ("news.large", "", {"A": "x" * 5000}),
        ]
        assert [len(one.data) for one in got] == [1, 1, 1, 900_000]


async def test_a_message_crosses_once_and_does_not_come_back(edge: Client, hub: Client) -> None:
    ears = [await heard_by(client, subject) for client in (edge, hub) for subject in ("once.>", "once.*", "once.a")]
    await linked(edge, hub)
    for client in (edge, hub):
        await client.publish("once.a", b"1")
        await linked(edge, hub)
        await linked(edge, hub)
        assert [ear.qsize() for ear in ears] == [1] * 6
        for ear in ears:
            ear.get_nowait()


async def test_nobody_answers(edge: Client, hub: Client) -> None:
    for client in (edge, hub):
        with pytest.raises(NoRespondersError):
            await client.request("nobody.is.there", b"", timeout=5)


async def test_members_of_a_group_at_both_sides(edge: Client, hub: Client) -> None:
    """The side where a message is published prefers its own member; without one, the other side has it."""
    at_edge = await heard_by(edge, "work", "q")
    await linked(edge, hub)
    for client in (edge, hub):
        await client.publish("work", b"1")
        await next_of(at_edge)
    at_hub = await heard_by(hub, "work", "q")
    others = await heard_by(hub, "work", "other")
    await linked(edge, hub)
    for number in range(10):
        await edge.publish("work", b"%d" % number)
        await hub.publish("work", b"%d" % number)
    await linked(edge, hub)
    await linked(edge, hub)
    assert (at_edge.qsize(), at_hub.qsize(), others.qsize()) == (10, 10, 20)


async def test_what_is_denied_does_not_cross(pair: Pair, edge: Client, hub: Client) -> None:
    got: dict[Client, list[tuple[bytes, str]]] = {edge: [], hub: []}

    def note(client: Client) -> Callable[[Msg], Awaitable[None]]:
        async def take(message: Msg) -> None:
            got[client].append((message.data, message.subject))

        return take

    for client in (edge, hub):
        for subject in ("secret.>", "*.B.*", "$KV.>", "open"):
            await client.subscribe(subject, cb=note(client))
    await linked(edge, hub)
    for subject in ("secret.in.a", "secret.out.a", "$KV.B.a", "$OBJ.B.a", "open"):
        await hub.publish(subject, b"hub")
        await edge.publish(subject, b"edge")
    await linked(edge, hub)
    await linked(edge, hub)
    assert [subject for data, subject in got[edge] if data == b"hub"] == ["secret.out.a", "open"]
    # A nats-server whose hub asks by a wildcard does not send it what it may not be sent, either.
    only_here = ["secret.in.a"] if pair.is_pelton else []
    assert [subject for data, subject in got[hub] if data == b"edge"] == [*only_here, "open"]


async def test_interest_ends(edge: Client, hub: Client) -> None:
    for here, there in ((edge, hub), (hub, edge)):
        heard = await here.subscribe("ends")
        await linked(edge, hub)
        await there.publish("ends", b"")
        await heard.next_msg(5)
        await heard.unsubscribe()
        await linked(edge, hub)
        with pytest.raises(NoRespondersError):
            await there.request("ends", b"", timeout=5)


# --- JetStream


async def test_each_side_has_its_own_jetstream(edge: Client, hub: Client) -> None:
    for client, own in ((edge, "edge"), (hub, "hub")):
        assert (await client.jetstream().account_info()).domain == own
        for domain in ("edge", "hub"):
            assert (await client.jetstream(domain=domain).account_info()).domain == domain


async def test_a_stream_of_the_edge_is_used_from_the_hub(edge: Client, hub: Client) -> None:
    await edge.jetstream().add_stream(name="S", subjects=["s.>"])
    await linked(edge, hub)
    js = hub.jetstream(domain="edge")
    ack = await js.publish("s.1", b"one", headers={"A": "b"})
    assert (ack.stream, ack.seq, ack.domain) == ("S", 1, "edge")
    pull = await js.pull_subscribe("s.>", durable="d", stream="S")
    (message,) = await pull.fetch(1, timeout=5)
    assert (message.subject, message.data, message.headers) == ("s.1", b"one", {"A": "b"})
    await message.ack_sync(timeout=5)
    assert (await js.consumer_info("S", "d")).num_ack_pending == 0
    assert await edge.jetstream().consumer_info("S", "d")
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL)
    push = await js.subscribe("s.>", stream="S", durable="p", config=config, manual_ack=True)
    pushed = await push.next_msg(5)
    assert (pushed.subject, pushed.data) == ("s.1", b"one")
    await pushed.ack_sync(timeout=5)


async def test_a_stream_of_the_hub_is_used_from_the_edge(edge: Client, hub: Client) -> None:
    js = edge.jetstream(domain="hub")
    await js.add_stream(name="H", subjects=["h.>"])
    await linked(edge, hub)
    ack = await js.publish("h.1", b"one")
    assert (ack.stream, ack.domain) == ("H", "hub")
    pull = await js.pull_subscribe("h.>", durable="d", stream="H")
    (message,) = await pull.fetch(1, timeout=5)
    assert (message.subject, message.data) == ("h.1", b"one")
    await message.ack_sync(timeout=5)
    assert (await js.consumer_info("H", "d")).num_ack_pending == 0


async def test_buckets_of_the_edge_are_written_through_its_domain(edge: Client, hub: Client) -> None:
    await edge.jetstream().create_key_value(bucket="B")
    ack = json.loads((await hub.request("$JS.edge.API.$KV.B.a", b"1", timeout=5)).data)
    assert (ack["stream"], ack["seq"], ack["domain"]) == ("KV_B", 1, "edge")
    bucket = await edge.jetstream().key_value("B")
    assert (await bucket.get("a")).value == b"1"


async def test_the_hub_mirrors_a_stream_of_the_edge(edge: Client, hub: Client) -> None:
    at_edge = edge.jetstream()
    await at_edge.add_stream(name="S", subjects=["s.>"])
    for number in range(500):
        await edge.publish(f"s.{number}", b"%d" % number)
    mirror = {"name": "M", "mirror": {"name": "S", "external": {"api": "$JS.edge.API"}}}
    made = json.loads((await hub.request("$JS.API.STREAM.CREATE.M", json.dumps(mirror).encode())).data)
    assert "error" not in made

    async def mirrored() -> int:
        return (await hub.jetstream().stream_info("M")).state.messages

    await eventually(mirrored, 500)
    await at_edge.publish("s.last", b"last")
    await eventually(mirrored, 501)
    last = await hub.jetstream().get_msg("M", 501)
    assert (last.subject, last.data) == ("s.last", b"last")
