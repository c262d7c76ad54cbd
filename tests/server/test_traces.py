"""Who is told where a message goes, across accounts too: as on nats-server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.conftest import settled

CONFIG = """
accounts {
  A {
    jetstream: enabled
    users: [{user: a, password: p}]
    exports: [
      {service: "closed"}, {service: "open", allow_trace: true}, {service: "s.1", allow_trace: true}, {stream: "e.>"}
    ]
  }
  B {
    users: [{user: b, password: p}]
    imports: [
      {service: {account: A, subject: "closed"}}, {service: {account: A, subject: "open"}}
      {service: {account: A, subject: "s.1"}}, {stream: {account: A, subject: "e.>"}, allow_trace: true}
    ]
    msg_trace: {dest: "seen", sampling: "100%"}
  }
}
"""
SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module", params=["nats", "pelton"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("traces")
    if request.param == "nats":
        with nats_server(folder, extra=CONFIG) as server:
            yield server.port
        return
    (folder / "pelton.conf").write_text(f"jetstream {{ store_dir: '{folder}/stores' }}\n{CONFIG}")
    with served_store(None, ("-c", str(folder / "pelton.conf"))) as ours:
        yield ours.port


class Both(NamedTuple):
    a: Client
    b: Client


@pytest.fixture
async def both(port: int) -> AsyncIterator[Both]:
    clients = [await nats.connect(f"nats://{user}:p@127.0.0.1:{port}", allow_reconnect=False) for user in "ab"]
    yield Both(*clients)
    for client in clients:
        await client.close()


async def told(seen: Subscription) -> list[tuple[Any, ...]]:
    """What the next event tells of the way of a message."""
    events = json.loads((await seen.next_msg(60)).data)["events"]
    keys = ("type", "acc", "subj", "from", "to", "sub", "queue", "stream", "subject")
    return [tuple(event[key] for key in keys if key in event) for event in events]


async def stored(client: Client) -> bytes:
    asked = await client.request("$JS.API.STREAM.MSG.GET.S", b'{"last_by_subj":"s.1"}', timeout=60)
    return base64.b64decode(json.loads(asked.data)["message"].get("hdrs", ""))


async def test_services_and_streams_of_other_accounts(both: Both) -> None:
    a, b = both
    seen = [await client.subscribe("trace") for client in both]
    closed, opened = await a.subscribe("closed"), await a.subscribe("open", queue="w")
    for subject, client in (("e.>", a), ("e.x", b)):
        await client.subscribe(subject)
    await a.request("$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s.*"],"storage":"memory"}', timeout=60)
    for client in both:
        await settled(client)
    headers = {"Nats-Trace-Dest": "trace"}
    await b.publish("closed", b"", headers=headers)
    assert await told(seen[1]) == [("in", "B", "closed"), ("si", "A", "closed", "closed")]
    assert ((await closed.next_msg(60)).headers or {})["Nats-Trace-Dest"] == "trace disabled"
    await b.publish("open", b"", headers=headers)
    assert await told(seen[1]) == [("in", "B", "open"), ("si", "A", "open", "open"), ("eg", "A", "open", "w")]
    await opened.next_msg(60)
    await b.publish("open", b"", headers=headers | {"Nats-Trace-Only": "true"})
    assert (await told(seen[1]))[-1] == ("eg", "A", "open", "w")
    await a.publish("e.x", b"", headers=headers)
    assert await told(seen[0]) == [("in", "A", "e.x"), ("eg", "e.>"), ("se", "B", "e.x"), ("eg", "B", "e.x")]
    await b.publish("s.1", b"", headers=headers)
    assert await told(seen[1]) == [("in", "B", "s.1"), ("si", "A", "s.1", "s.1"), ("js", "S", "s.1")]
    await settled(b)
    assert await stored(a) == b"NATS/1.0\r\nNats-Trace-Dest: trace disabled\r\n\r\n"
    assert not opened.pending_msgs


async def test_messages_of_traces_that_others_record(both: Both) -> None:
    a, b = both
    seen = await b.subscribe("seen")
    closed = await a.subscribe("closed")
    for client in both:
        await settled(client)
    for parent in ("x-01", f"{SAMPLED[:-1]}0", f"{SAMPLED[:-2]}zz"):
        await b.publish("closed", b"", headers={"traceparent": parent})
        assert "Nats-Trace-Dest" not in ((await closed.next_msg(60)).headers or {})
    for name, parent in (("traceparent", SAMPLED), ("Traceparent", f"{SAMPLED[:-1]}3")):
        # Such a message is delivered.
        await b.publish("closed", b"", headers={name: parent, "Nats-Trace-Only": "true"})
        assert await told(seen) == [("in", "B", "closed"), ("si", "A", "closed", "closed")]
        assert ((await closed.next_msg(60)).headers or {})["Nats-Trace-Dest"] == "trace disabled"
    await a.publish("e.x", b"", headers={"traceparent": SAMPLED})
    await b.publish("closed", b"", headers={"traceparent": SAMPLED})
    # The other account does not want to see any.
    assert (await told(seen))[0] == ("in", "B", "closed")


async def test_what_a_stream_keeps_of_headers_about_who_asks(both: Both) -> None:
    await both.a.request("$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s.*"],"storage":"memory"}', timeout=60)
    for given, kept in (
        ({"Nats-Request-Info": "x", "A": "b"}, b"NATS/1.0\r\nA: b\r\n\r\n"),
        ({"Nats-Request-Info": "x"}, b""),
        ({"Nats-Trace-Dest": "no subject"}, b"NATS/1.0\r\nNats-Trace-Dest: no subject\r\n\r\n"),
    ):
        await both.a.request("s.1", b"", timeout=60, headers=given)
        assert await stored(both.a) == kept
    await both.b.request("s.1", b"", timeout=60, headers={"A": "b"})
    assert await stored(both.a) == b"NATS/1.0\r\nA: b\r\n\r\n"
