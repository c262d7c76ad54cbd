"""Accounts of a server: apart from each other, except for what they import. The real server has the same answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoMessageError

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.auth.real import BareClient
from tests.server.conftest import settled

CONFIG = """
accounts {
  A {
    jetstream: enabled
    users: [
      {user: a, password: p}
      {user: worker, password: p, permissions: {subscribe: ["jobs.>"], allow_responses: {max: 2, expires: "1m"}}}
      {user: reader, password: p, permissions: {
        publish: ["_INBOX.>"], subscribe: {allow: ["open.>", "_INBOX.>"], deny: "open.secret.>"}
      }}
    ]
    exports: [
      {service: "ask.*"}
      {service: "many", response_type: stream}
      {service: "told.*"}
      {stream: "events.>"}
      {service: "$JS.API.STREAM.INFO.SHARED"}
    ]
  }
  B {
    jetstream { max_streams: 1, max_file: 1MB }
    users: [{user: b, password: p}]
    imports: [
      {service: {account: A, subject: "ask.*"}, to: "please.*"}
      {service: {account: A, subject: "many"}}
      {service: {account: A, subject: "told.*"}, share: true}
      {stream: {account: A, subject: "events.>"}, prefix: "of.a"}
      {service: {account: A, subject: "$JS.API.STREAM.INFO.SHARED"}, to: "shared.info"}
    ]
  }
  C { users: [{user: c, password: p}], limits { max_conn: 1, max_subs: 2, max_payload: 10 } }
}
"""

Connect = Callable[..., Awaitable[Client]]


@pytest.fixture(scope="module", params=["nats", "pelton"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("accounts")
    if request.param == "nats":
        with nats_server(folder, extra=CONFIG) as server:
            yield server.port
        return
    (folder / "pelton.conf").write_text(f"jetstream {{ store_dir: '{folder}/stores' }}\n{CONFIG}")
    with served_store(None, ("-c", str(folder / "pelton.conf"))) as ours:
        yield ours.port


@pytest.fixture
async def connect(port: int) -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def connect(user: str, **options: Any) -> Client:
        url = f"nats://{user}:p@127.0.0.1:{port}"
        client = await nats.connect(url, allow_reconnect=False, error_cb=_ignore, **options)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        if not client.is_closed:
            await client.close()


async def _ignore(error: Exception) -> None:
    """Errors are looked at where they are expected."""


async def test_accounts_see_nothing_of_each_other(connect: Connect) -> None:
    a, b, c = [await connect(user) for user in "abc"]
    everything = [await client.subscribe(">") for client in (b, c)]
    for client in (b, c):
        await client.flush()
    sub = await a.subscribe("private.>")
    await a.publish("private.x", b"1", reply="_INBOX.private")
    assert (await sub.next_msg(timeout=60)).data == b"1"
    for client, seen in zip((b, c), everything, strict=True):
        await client.flush()
        assert seen.pending_msgs == 0
        await seen.unsubscribe()
    with pytest.raises(NoRespondersError):
        await b.request("private.x", b"", timeout=60)


async def test_each_account_has_its_own_streams(connect: Connect) -> None:
    a, b, c = [await connect(user) for user in "abc"]
    await a.jetstream().add_stream(name="OWN", subjects=["own.>"])
    await a.jetstream().publish("own.x", b"a's")
    await b.jetstream().add_stream(name="OWN", subjects=["own.>"])
    assert (await b.jetstream().stream_info("OWN")).state.messages == 0
    assert (await a.jetstream().stream_info("OWN")).state.messages == 1
    with pytest.raises(nats.js.errors.Error, match="maximum number of streams"):
        await b.jetstream().add_stream(name="MORE", subjects=["more.>"])
    assert (await b.jetstream().account_info()).limits.max_streams == 1
    with pytest.raises(nats.js.errors.Error, match="10039"):
        await c.jetstream().account_info()
    for client in (a, b):
        await client.jetstream().delete_stream("OWN")


async def test_a_service_is_requested_under_its_local_name(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")

    async def answer(message: Msg) -> None:
        await message.respond(f"{message.subject} {message.data.decode()}".encode())

    await a.subscribe("ask.*", cb=answer)
    await settled(a)
    assert (await b.request("please.help", b"now", timeout=60)).data == b"ask.help now"
    with pytest.raises(NoRespondersError):
        await b.request("ask.help", b"now", timeout=60)
    # Each answer is for its own request.
    answers = await asyncio.gather(*[b.request(f"please.n{number}", b"x", timeout=60) for number in range(20)])
    assert [message.data.decode() for message in answers] == [f"ask.n{number} x" for number in range(20)]


async def test_a_service_without_anyone_to_answer_is_told(connect: Connect) -> None:
    b = await connect("b")
    with pytest.raises(NoRespondersError):
        await b.request("please.nobody", b"", timeout=60)


async def test_a_service_may_answer_several_times(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")

    async def answer(message: Msg) -> None:
        for number in range(5):
            await message.respond(b"%d" % number)

    await a.subscribe("many", cb=answer)
    await settled(a)
    inbox = b.new_inbox()
    sub = await b.subscribe(inbox)
    await b.publish("many", b"", reply=inbox)
    assert [(await sub.next_msg(timeout=60)).data for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_an_answer_goes_to_its_request_alone(connect: Connect) -> None:
    a, b, c = [await connect(user) for user in "abc"]
    replies: list[str] = []

    async def note(message: Msg) -> None:
        replies.append(message.reply)

    await a.subscribe("ask.*", cb=note)
    await settled(a)
    inbox = b.new_inbox()
    sub = await b.subscribe(inbox)
    await b.publish("please.x", b"", reply=inbox)
    await b.flush()
    while not replies:
        await asyncio.sleep(0)
    # Other accounts cannot answer, even if they guess the subject; the inbox of B has no meaning in A.
    for client in (b, c):
        await client.publish(replies[0], b"forged")
        await client.flush()
    await a.publish(inbox, b"forged")
    await a.publish(replies[0], b"true")
    await a.publish(replies[0], b"once more")
    await a.flush()
    assert (await sub.next_msg(timeout=60)).data == b"true"
    await b.flush()
    assert sub.pending_msgs == 0


async def test_a_stream_of_another_account_appears_and_can_be_stored(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    await b.jetstream().add_stream(name="KEPT", subjects=["of.a.>"])
    sub = await b.subscribe("of.a.>")
    await settled(b)
    await a.publish("events.paint", b"red")
    await a.flush()
    message = await sub.next_msg(timeout=60)
    assert (message.subject, message.data) == ("of.a.events.paint", b"red")
    for _ in range(200):
        if (await b.jetstream().stream_info("KEPT")).state.messages:
            break
    assert (await b.jetstream().get_msg("KEPT", 1)).subject == "of.a.events.paint"
    await b.jetstream().delete_stream("KEPT")
    # It goes in one direction only.
    back = await a.subscribe("events.>")
    await settled(a)
    await b.publish("of.a.events.paint", b"blue")
    await b.flush()
    await a.flush()
    assert back.pending_msgs == 0


async def test_an_api_can_be_a_service(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    await a.jetstream().add_stream(name="SHARED", subjects=["shared.a"])
    found = json.loads((await b.request("shared.info", b"", timeout=60)).data)
    assert found["config"]["name"] == "SHARED"
    await a.jetstream().delete_stream("SHARED")


async def test_a_worker_may_answer_what_it_received_and_no_more(connect: Connect) -> None:
    a, worker = await connect("a"), await connect("worker")
    requests: list[Msg] = []

    async def note(message: Msg) -> None:
        requests.append(message)

    await worker.subscribe("jobs.>", cb=note)
    await settled(worker)
    inbox = a.new_inbox()
    sub = await a.subscribe(inbox)
    await a.publish("jobs.paint", b"", reply=inbox)
    await a.flush()
    while not requests:
        await asyncio.sleep(0)
    for number in range(4):
        await worker.publish(inbox, b"%d" % number)
    await worker.publish("jobs.more", b"")
    await worker.flush()
    await a.flush()
    assert [(await sub.next_msg(timeout=60)).data for _ in range(2)] == [b"0", b"1"]
    assert sub.pending_msgs == 0
    assert len(requests) == 1


async def test_a_reader_receives_nothing_that_is_denied(connect: Connect) -> None:
    a, reader = await connect("a"), await connect("reader")
    allowed = await reader.subscribe("open.>")
    refused = [await reader.subscribe(subject) for subject in (">", "open.secret.x", "private.>", "$JS.API.>")]
    await settled(reader)
    for subject in ("open.x", "open.secret.x", "private.x", "open.y"):
        await a.publish(subject, b"")
    await a.flush()
    await reader.flush()
    assert [(await allowed.next_msg(timeout=60)).subject for _ in range(2)] == ["open.x", "open.y"]
    assert [sub.pending_msgs for sub in (allowed, *refused)] == [0] * 5
    with pytest.raises((NoMessageError, nats.errors.Error)):
        await reader.request("$JS.API.INFO", b"", timeout=0.2)


def alone(port: int, login: dict[str, str]) -> BareClient:
    """Return the only client of an account, once the server has noticed that the one before has left."""
    while not (client := BareClient(port, login)).ask():
        client.close()
    return client


def test_limits_of_an_account(port: int) -> None:
    login = {"user": "c", "pass": "p"}
    with closing(alone(port, login)) as client:
        assert client.ask("SUB x 1", "SUB y 2")
        assert not client.ask("SUB z 3")
        assert client.errors[0] == "maximum subscriptions exceeded"
        with closing(BareClient(port, login)) as another:
            assert not another.ask()
            assert another.errors[0] == "maximum account active connections exceeded"
    with closing(alone(port, login)) as client:
        assert client.ask("SUB x 1", "PUB x 10\r\n1234567890")
        assert client.received == ["x"]
        assert not client.ask("PUB x 11\r\n12345678901")
        assert client.errors[0] == "Maximum Payload Violation"


async def test_who_asks_is_said_by_the_server_alone(connect: Connect) -> None:
    worker = await connect("a")
    told = await worker.subscribe("*.x")
    await settled(worker)
    client = await connect("b", name="asks")
    found = {}
    for subject in ("please.x", "told.x"):
        given = {"Nats-Request-Info": '{"acc":"A"}', "Mine": "1", "Nats-Trace-Dest": "t"}
        await client.publish(subject, b"", "_INBOX.x", headers=given)
        await client.publish(subject, b"", "_INBOX.x")
        for number in range(2):
            headers = (await told.next_msg(5)).headers or {}
            assert headers.get("Mine") == ("1" if number == 0 else None)
            # An export that does not allow it is not traced.
            assert headers.get("Nats-Trace-Dest") == ("trace disabled" if number == 0 else None)
            info = json.loads(headers["Nats-Request-Info"])
            assert not number or info.keys() >= found[subject]
            found[subject] = info.keys() - {"rtt", "cluster"}
            assert (info["acc"], info.get("user"), info.get("name")) == (
                ("B", "b", "asks") if subject == "told.x" else ("B", None, None)
            )
    assert found["please.x"] == {"acc"}
    assert found["told.x"] >= {"acc", "start", "host", "id", "user", "name", "lang", "ver", "server", "kind"}
    assert found["told.x"] <= SHARED
    await client.publish("told.x", b"", headers={"Nats-Request-Info": "{}"})
    assert json.loads(((await told.next_msg(5)).headers or {})["Nats-Request-Info"])["acc"] == "B"


SHARED = {
    "acc",
    "start",
    "host",
    "id",
    "user",
    "name",
    "name_tag",
    "lang",
    "ver",
    "server",
    "kind",
    "client_type",
}
