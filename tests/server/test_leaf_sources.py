"""Streams of the edge that source or mirror streams of a real hub, whatever happens between them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.aio.client import Client

import pelton
from pelton.server import Server
from tests.cluster.network import Network, network
from tests.conformance.cases.eventually import eventually
from tests.kit.nats_server import NatsServer, free_ports, nats_server
from tests.server.conftest import Started
from tests.server.test_leaf_troubles import listening, remotes

_HUB = {"api": "$JS.hub.API"}


class Edge(NamedTuple):
    """A hub with its client, the network between, and the edge with its client."""

    hub: NatsServer
    there: Client
    net: Network
    server: Server
    here: Client


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[NatsServer, int]]:
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", domain="hub", extra=listening(port)) as server:
        yield server, port


@pytest.fixture
async def edge(hub: tuple[NatsServer, int], started: Started) -> AsyncIterator[Edge]:
    server, port = hub
    async with network(port) as net:
        leaf = await started(leaf_remotes=remotes(net.port), domain="edge")
        async with await nats.connect(server.url) as there, await nats.connect(f"nats://{leaf.endpoints[0]}") as here:
            yield Edge(server, there, net, leaf, here)


async def ask(client: Client, verb: str, **fields: Any) -> dict[str, Any]:
    reply = json.loads((await client.request(f"$JS.API.{verb}", json.dumps(fields).encode(), timeout=5)).data)
    assert "error" not in reply, reply["error"]
    found: dict[str, Any] = reply
    return found


async def fill(client: Client, first: int, last: int, subject: str = "o") -> None:
    for number in range(first, last + 1):
        await client.jetstream().publish(f"{subject}.{number % 3}", b"%d" % number)


async def make(edge: Edge, kind: str, **fields: Any) -> None:
    origin = {"name": "O", "external": _HUB, **fields}
    given = {"mirror": origin} if kind == "mirror" else {"sources": [origin]}
    await ask(edge.here, "STREAM.CREATE.S", name="S", **given)


async def stored(client: Client, stream: str = "S") -> list[tuple[int, str, int]]:
    """Return sequence, subject and number of each message."""
    info = await ask(client, f"STREAM.INFO.{stream}")
    found = []
    for seq in range(info["state"]["first_seq"], info["state"]["last_seq"] + 1):
        reply = json.loads((await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":%d}' % seq)).data)
        if "message" in reply:
            message = reply["message"]
            found.append((message["seq"], message["subject"], int(base64.b64decode(message["data"]))))
    return found


async def numbers(edge: Edge) -> list[int]:
    return [number for _, _, number in await stored(edge.here)]


async def has(edge: Edge, wanted: list[int]) -> None:
    async def look() -> list[int]:
        return await numbers(edge)

    await eventually(look, wanted)


async def told_of(edge: Edge) -> dict[str, Any]:
    """Return what the info of the stream tells of its only origin."""
    info = await ask(edge.here, "STREAM.INFO.S")
    found: dict[str, Any] = info["mirror"] if "mirror" in info else info["sources"][0]
    return found


KINDS = pytest.mark.parametrize("kind", ["source", "mirror"])


@KINDS
async def test_whatever_happens_each_message_is_stored_once_and_in_order(kind: str, edge: Edge) -> None:
    """The wire is cut, the hub killed, its consumer deleted: it goes on after what is here."""
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 3)
    await make(edge, kind)
    await has(edge, [1, 2, 3])
    info = await told_of(edge)
    assert (info["lag"], info["external"]["api"]) == (0, "$JS.hub.API")
    assert info["active"] > 0
    edge.net.cut()
    await fill(edge.there, 4, 6)
    edge.net.mend()
    await has(edge, list(range(1, 7)))
    for consumer in (await ask(edge.there, "CONSUMER.NAMES.O"))["consumers"] or ():
        await ask(edge.there, f"CONSUMER.DELETE.O.{consumer}")
    edge.hub.kill()
    edge.hub.start()
    async with await nats.connect(edge.hub.url) as there:
        await fill(there, 7, 9)
    await has(edge, list(range(1, 10)))
    assert "error" not in await told_of(edge)
    if kind == "source":
        reply = json.loads((await edge.here.request("$JS.API.STREAM.MSG.GET.S", b'{"seq":9}')).data)
        # As nats-server calls it: the name, and a hash of the prefix of its API.
        assert base64.b64decode(reply["message"]["hdrs"]).startswith(
            b"NATS/1.0\r\nNats-Stream-Source: O:bTMUkJQk 9 > > o.0 "
        )


@KINDS
async def test_an_origin_that_comes_later_is_waited_for(kind: str, edge: Edge) -> None:
    await make(edge, kind)

    async def error() -> object:
        return (await told_of(edge)).get("error", {}).get("err_code")

    await eventually(error, 10059)
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 2)
    await has(edge, [1, 2])
    await eventually(error, None)


async def test_a_source_of_a_stream_that_is_made_anew_begins_anew(edge: Edge) -> None:
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 3)
    await make(edge, "source")
    await has(edge, [1, 2, 3])
    edge.net.cut()
    await ask(edge.there, "STREAM.DELETE.O")
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 4, 8)
    edge.net.mend()
    await has(edge, list(range(1, 9)))


async def test_a_mirror_keeps_sequences_and_gaps(edge: Edge) -> None:
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 9)
    for seq in (2, 3, 9):
        await ask(edge.there, "STREAM.MSG.DELETE.O", seq=seq)
    await make(edge, "mirror")
    await has(edge, [1, 4, 5, 6, 7, 8])
    await ask(edge.there, "STREAM.PURGE.O")
    await fill(edge.there, 10, 11)
    await has(edge, [1, 4, 5, 6, 7, 8, 10, 11])
    assert [seq for seq, _, _ in await stored(edge.here)] == [1, 4, 5, 6, 7, 8, 10, 11]


@KINDS
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"filter_subject": "o.1"}, [("o.1", 1), ("o.1", 4), ("o.1", 7)]),
        ({"opt_start_seq": 6}, [("o.0", 6), ("o.1", 7), ("o.2", 8)]),
        (
            {"subject_transforms": [{"src": "o.1", "dest": "x"}, {"src": "o.2", "dest": ""}], "opt_start_seq": 5},
            [("o.2", 5), ("x", 7), ("o.2", 8)],
        ),
    ],
)
async def test_some_of_the_messages(
    kind: str, fields: dict[str, Any], wanted: list[tuple[str, int]], edge: Edge
) -> None:
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 8)
    await make(edge, kind, **fields)

    async def found() -> list[tuple[str, int]]:
        return [(subject, number) for _, subject, number in await stored(edge.here)]

    await eventually(found, wanted)
    edge.net.cut()
    await fill(edge.there, 10, 10)
    edge.net.mend()
    await eventually(
        found,
        [
            *wanted,
            *((subject.replace("o.1", "x") if "subject_transforms" in fields else subject, 10) for subject in ["o.1"]),
        ],
    )


async def test_from_a_time_on(edge: Edge) -> None:
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 4)
    third = await ask(edge.there, "STREAM.MSG.GET.O", seq=3)
    await make(edge, "source", opt_start_time=third["message"]["time"])
    await has(edge, [3, 4])
    edge.net.cut()
    await fill(edge.there, 5, 6)
    edge.net.mend()
    await has(edge, [3, 4, 5, 6])


async def test_what_has_no_room_is_waited_for(edge: Edge) -> None:
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 5)
    given = {"sources": [{"name": "O", "external": _HUB}], "max_msgs": 2, "discard": "new"}
    await ask(edge.here, "STREAM.CREATE.S", name="S", **given)
    await has(edge, [1, 2])

    async def lag() -> int:
        found: int = (await told_of(edge))["lag"]
        return found

    await eventually(lag, 3)
    await ask(edge.here, "STREAM.PURGE.S")
    await has(edge, [3, 4])


async def test_a_work_queue_of_the_hub_is_emptied_of_what_is_stored(edge: Edge) -> None:
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"], retention="workqueue")
    await fill(edge.there, 1, 5)
    given = {"sources": [{"name": "O", "external": _HUB}], "max_msgs": 3, "discard": "new"}
    await ask(edge.here, "STREAM.CREATE.S", name="S", **given)
    await has(edge, [1, 2, 3])
    assert (await ask(edge.there, "STREAM.INFO.O"))["state"]["messages"] == 5
    await ask(edge.here, "STREAM.PURGE.S")
    await has(edge, [4, 5])

    async def left() -> int:
        found: int = (await ask(edge.there, "STREAM.INFO.O"))["state"]["messages"]
        return found

    await eventually(left, 0)


async def test_a_bucket_of_the_hub_is_read_at_the_edge_and_written_at_the_hub(edge: Edge, tmp_path: Path) -> None:
    at_hub = await edge.there.jetstream().create_key_value(bucket="B", history=5)
    await at_hub.put("a", b"1")
    async with pelton.open(f"nats://{edge.server.endpoints[0]}") as jet:
        bucket = await jet.create_bucket("B", mirror={"name": "B", "domain": "hub"})

        async def value(key: str) -> bytes | None:
            try:
                return bytes((await bucket.get(key)).value)
            except pelton.BucketKeyNotFoundError:
                return None

        await eventually(partial(value, "a"), b"1")
        revision = await bucket.put("b", b"2")
        assert (await at_hub.get("b")).revision == revision
        await eventually(partial(value, "b"), b"2")
        await bucket.delete("a")
        await eventually(partial(value, "a"), None)
        theirs = await edge.here.jetstream().key_value("B")
        assert (await theirs.get("b")).value == b"2"
        # As NATS's clients write into a mirror.
        ack = json.loads((await edge.here.request("$JS.hub.API.$KV.B.c", b"3")).data)
        assert (ack["stream"], ack["domain"]) == ("KV_B", "hub")
        await eventually(partial(value, "c"), b"3")
        edge.net.cut()
        assert await value("b") == b"2"
        edge.net.mend()


async def test_objects_of_the_hub_are_read_at_the_edge(edge: Edge) -> None:
    at_hub = await edge.there.jetstream().create_object_store(bucket="F")
    content = bytes(range(256)) * 2000
    await at_hub.put("manual", content)
    origin = {"name": "OBJ_F", "external": _HUB}
    await ask(edge.here, "STREAM.CREATE.OBJ_F", name="OBJ_F", mirror=origin, allow_direct=True)
    async with pelton.open(f"nats://{edge.server.endpoints[0]}") as jet:
        files = await jet.objects("F")

        async def read() -> bytes | None:
            try:
                return await files.get("manual")
            except pelton.PeltonError:
                return None

        await eventually(read, content)


async def test_odd_messages_in_between_change_nothing(edge: Edge) -> None:
    """What is no delivery, or not the next one, makes it begin again after what is stored."""
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"])
    await fill(edge.there, 1, 3)
    await make(edge, "mirror")
    interest = edge.server.leafs.all[0].account.leaf
    assert interest is not None
    known = {subject for subject, _ in interest.all() if subject.startswith("_INBOX.") and subject.endswith("*")}

    async def inboxes() -> int:
        return len({subject for subject, _ in interest.all() if subject.startswith("_INBOX.")} - known)

    ack = "$JS.ACK.O.c.1.{}.{}.1.0"
    odd = (
        "",
        "x",
        ack.format("a", "b"),
        ack.format(4, 9),
        ack.format(1, 4),
        ack.format("9" * 30, 4),
        ack.format(-1, 4),
    )
    for number, (reply, headers) in enumerate([*((one, None) for one in odd), ("", {"Nats-Last-Consumer": "77"})]):
        await has(edge, list(range(1, number + 4)))
        await eventually(inboxes, 1)
        (subject,) = {subject for subject, _ in interest.all() if subject.startswith("_INBOX.")} - known
        await edge.there.publish(subject, b"0", reply=reply, headers=headers)
        await fill(edge.there, number + 4, number + 4)
    await has(edge, list(range(1, number + 5)))


async def test_an_inbox_of_the_hub_and_the_work_of_the_edge(edge: Edge) -> None:
    """Workers at the edge get one message of a subject at a time, offline too, and no subject waits for another."""
    await ask(edge.there, "STREAM.CREATE.O", name="O", subjects=["o.*"], max_msgs_per_subject=10)
    async with pelton.open(edge.server.settings.stores["$G"].path) as jet:
        origin = pelton.StreamSource(name="O", external=pelton.External(**_HUB))
        await jet.create_stream("inbox", mirror=origin)
        work = await jet.create_stream(
            "work",
            retention="workqueue",
            max_msgs_per_subject=1,
            discard="new",
            discard_new_per_subject=True,
            sources=[{"name": "inbox"}],
        )
        workers = await work.create_consumer(durable_name="workers")
        for number, subject in enumerate(("lamp", "lamp", "lamp", "door")):
            await edge.there.jetstream().publish(f"o.{subject}", b"%d" % number)

        async def waiting() -> tuple[int, int]:
            info = await work.info()
            return info.state.messages, info.sources[0].lag

        await eventually(waiting, (2, 2))
        # What has arrived is worked on without the hub.
        edge.net.cut()
        seen: dict[str, list[bytes]] = {}
        while sum(map(len, seen.values())) < 4:
            for message in await workers.fetch(5, timeout=5):
                seen.setdefault(message.subject, []).append(message.data)
                await message.ack()
        assert seen == {"o.lamp": [b"0", b"1", b"2"], "o.door": [b"3"]}
        edge.net.mend()
        await edge.there.jetstream().publish("o.door", b"4")
        (last,) = await workers.fetch(1, timeout=10)
        assert last.data == b"4"
