"""What a server tells of itself: over HTTP, to Prometheus, on ``$SYS``; its fields are among the real server's."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from pelton.api import StreamConfig, StreamCreate, StreamDelete
from pelton.server import Endpoint, Server, reports
from pelton.server import monitoring as answers
from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.observed import ReportParameters, json_parts
from pelton.server.reports import REPORTS
from tests.kit.nats_server import free_ports, nats_server
from tests.server.conftest import Connected, Started
from tests.server.raw import raw_client

# A consumer that has delivered nothing yet tells when it was made.
OURS = {"last_active"}


@pytest.fixture
async def monitored(started: Started) -> Server:
    return await started(monitoring=Endpoint(port=-1))


async def get(server: Server, path: str) -> tuple[int, str]:
    assert server.monitoring_endpoint is not None
    return await fetched(server.monitoring_endpoint.port, path)


async def fetched(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_reports_over_http(monitored: Server, connected: Connected) -> None:
    client = await connected(monitored, name="me")
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    await js.publish("s", b"hello")
    await js.pull_subscribe("s", "c")
    status, body = await get(monitored, "/varz")
    varz = json.loads(body)
    assert (status, varz["connections"], varz["server_id"]) == (200, 1, monitored.id)
    assert varz["in_msgs"] >= 3
    connz = json.loads((await get(monitored, "/connz?subs=1"))[1])
    assert [(one["name"], one["lang"]) for one in connz["connections"]] == [("me", "python3")]
    assert len(connz["connections"][0]["subscriptions_list"]) == connz["connections"][0]["subscriptions"]
    jsz = json.loads((await get(monitored, "/jsz?streams=true&consumers=true&config=1"))[1])
    (stream,) = jsz["account_details"][0]["stream_detail"]
    assert (jsz["messages"], stream["name"], stream["consumer_detail"][0]["name"]) == (1, "S", "c")
    assert json.loads((await get(monitored, "/healthz"))[1]) == {"status": "ok"}
    assert json.loads((await get(monitored, "/accountz?acc=$G"))[1])["account_detail"]["client_connections"] == 1
    assert json.loads((await get(monitored, "/accstatz"))[1])["account_statz"][0]["acc"] == "$G"
    assert "/varz" in (await get(monitored, "/"))[1]
    status, text = await get(monitored, "/metrics")
    assert "pelton_server_connections 1\n" in text
    assert "pelton_jetstream_messages 1\n" in text


async def test_a_report_on_streams_some_of_which_are_deleted_meanwhile(server: Server) -> None:
    account = server.account("$G")
    assert account is not None
    assert account.link is not None
    call = account.link.engine.call
    for number in range(3 * reports._AT_ONCE):
        await call(StreamCreate(config=StreamConfig(name=f"S{number:03}", subjects=(f"s.{number}",))))
    report = asyncio.ensure_future(reports.jsz(server, ReportParameters({"consumers": "1"})))
    rounds = 0
    while not report.done():
        rounds += 1
        # The last one is deleted while the first ones are told of.
        if rounds == 3:
            await call(StreamDelete(name=f"S{3 * reports._AT_ONCE - 1:03}"))
        await asyncio.sleep(0)
    assert rounds > 3
    told = json.loads(b"".join(json_parts(await report)))["account_details"][0]["stream_detail"]
    assert {one["name"] for one in told} >= {f"S{number:03}" for number in range(3 * reports._AT_ONCE - 1)}


async def test_how_long_the_way_to_a_client_is(started: Started, connected: Connected) -> None:
    server = await started(monitoring=Endpoint(port=-1), ping_interval=0.05)
    await connected(server)
    while "rtt" not in (found := json.loads((await get(server, "/connz"))[1])["connections"][0]):
        await asyncio.sleep(0)
    assert found["rtt"].endswith("s")


async def test_who_has_left(monitored: Server, connected: Connected) -> None:
    client = await connected(monitored, name="gone")
    await client.subscribe("a")
    await client.close()
    while not (found := json.loads((await get(monitored, "/connz?state=closed&auth=1"))[1])["connections"]):
        await asyncio.sleep(0)
    assert (found[0]["name"], found[0]["reason"]) == ("gone", "Client Closed")
    assert json.loads((await get(monitored, "/connz?state=any"))[1])["total"] == 1
    assert json.loads((await get(monitored, "/connz"))[1])["connections"] == []


async def test_what_is_no_report(monitored: Server) -> None:
    assert (await get(monitored, "/none"))[0] == 404
    assert monitored.monitoring_endpoint is not None
    port = monitored.monitoring_endpoint.port
    assert (await fetched(port, "/varz", "POST"))[0] == 405
    assert await fetched(port, "/healthz", "HEAD") == (200, "")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /" + b"x" * 40_000)
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "path",
    [
        "varz",
        "connz",
        "connz?subs=detail&auth=1",
        "subsz?subs=1",
        "jsz?streams=1&consumers=1",
        "accountz",
        "accountz?acc=$G",
        "accstatz",
        "healthz",
        "routez",
        "gatewayz",
        "leafz",
        "ipqueuesz",
    ],
)
async def test_fields_are_named_as_on_nats(path: str, monitored: Server, connected: Connected, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with nats_server(tmp_path / "nats", extra=f"http: 127.0.0.1:{port}") as oracle:
        async with raw_client(oracle.port) as client, raw_client(monitored.endpoints[0].port) as own:
            for one in (client, own):
                await one.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
                made = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
                await one.request("$JS.API.CONSUMER.CREATE.S.c", made)
            url = f"http://127.0.0.1:{port}/{path}"
            theirs = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))
            ours = json.loads((await get(monitored, f"/{path}"))[1])
    assert unknown(ours, theirs) == set()


def unknown(ours: Any, theirs: Any, path: str = "") -> set[str]:
    """Return the fields that only we have, or that have another type there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = {f"{path}.{key}" for key in ours.keys() - theirs.keys() - OURS}
        return found.union(*(unknown(ours[key], theirs[key], f"{path}.{key}") for key in ours.keys() & theirs.keys()))
    if isinstance(ours, list) and isinstance(theirs, list):
        return unknown(ours[0], theirs[0], f"{path}[]") if ours and theirs else set()
    numbers = (int, float)
    same = type(ours) is type(theirs) or (isinstance(ours, numbers) and isinstance(theirs, numbers))
    return set() if same else {f"{path}: {type(ours).__name__} and not {type(theirs).__name__}"}


async def test_who_am_i(connected: Connected) -> None:
    client = await connected()
    found = json.loads((await client.request("$SYS.REQ.USER.INFO", b"", timeout=60)).data)
    assert found["data"] == {"user": "", "account": "$G", "account_name": "$G"}
    assert found["server"]["ver"] == "2.15.1"


class Operator:
    """Lets everybody into the system account."""

    def is_required(self, kind: str = "STANDARD") -> bool:
        return True

    wants_nonce = False

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        return LoginRefusal("nobody is anonymous")

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        return ServerUser(name="op", account="$SYS")


async def test_reports_for_the_system_account(started: Started) -> None:
    server = await started(authenticator=Operator())
    async with raw_client(server.endpoints[0].port) as client:

        async def ask(subject: str, data: str = "") -> dict[str, Any]:
            client.sub("_INBOX.sys", "1")
            client.pub(subject, data, "_INBOX.sys")
            command = await client.next()
            client.send("UNSUB 1")
            found: dict[str, Any] = json.loads(command.data)  # type: ignore[union-attr]
            assert found["server"]["id"] == server.id
            return found

        assert (await ask("$SYS.REQ.SERVER.PING"))["statsz"]["connections"] == 1
        assert (await ask("$SYS.REQ.SERVER.PING.VARZ"))["data"]["server_name"] == server.name
        assert (await ask(f"$SYS.REQ.SERVER.{server.id}.CONNZ", '{"subs": true}'))["data"]["total"] == 1
        assert (await ask("$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"]
        assert (await ask("$SYS.REQ.ACCOUNT.$G.JSZ"))["data"]["name"] == "$G"
        assert (await ask("$SYS.REQ.USER.INFO"))["data"] == {"user": "op", "account": "$SYS", "account_name": "$SYS"}


async def test_others_get_no_reports_of_the_server(server: Server) -> None:
    async with raw_client(server.endpoints[0].port) as client:
        assert "503" in await client.request("$SYS.REQ.SERVER.PING")


async def test_reports_of_many_subscriptions_leave_others_their_turn(monitored: Server) -> None:
    async with raw_client(monitored.endpoints[0].port) as client, raw_client(monitored.endpoints[0].port) as other:
        client.send(*[f"SUB a.{number} {number}" for number in range(10_000)])
        client.send(b"SUB b \xff\xfe")
        await client.settle()
        for path in ("connz?subs=1", "connz?subs=detail", "subsz?subs=1&limit=20000", "connz?acc=$G&filter_subject=x"):
            report = asyncio.ensure_future(REPORTS[path.partition("?")[0]](monitored, of_path(path)))
            await asyncio.sleep(0)
            assert await other.settle() == []
            assert not report.done() or "filter" in path
            parts = list(json_parts(await report))
            # None of them takes long to encode, to copy or to send.
            assert max(map(len, parts)) < 1 << 16
            found = b"".join(parts).decode()
            assert "filter" in path or ("a.9999" in found and "b" in found)
        listed = json.loads((await get(monitored, "/subsz?subs=1&offset=9999&limit=9"))[1])
        assert [(one["subject"], one["sid"]) for one in listed["subscriptions_list"]] == [
            ("a.9999", "9999"),
            ("b", "\ufffd\ufffd"),
        ]
        assert listed["total"] == 10_001


def of_path(path: str) -> ReportParameters:
    return ReportParameters(dict(parse_qsl(path.partition("?")[2])))


async def test_nobody_waits_for_a_report_that_is_not_read(monitored: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    open_files = Path("/proc/self/fd")
    if not open_files.exists():
        pytest.skip("nothing tells which files are open")
    monkeypatch.setattr(answers, "_PATIENCE_S", 0.1)
    async with raw_client(monitored.endpoints[0].port) as client:
        for number in range(3000):
            client.sub("a" * 3000, f"{number}")
        await client.settle()
        where = monitored.monitoring_endpoint
        assert where is not None
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect((where.host, where.port))
        before = len(list(open_files.iterdir()))
        made.sendall(b"GET /connz?subs=1 HTTP/1.1\r\n\r\n")
        made.setblocking(False)
        await asyncio.get_running_loop().sock_recv(made, 1)
        while len(list(open_files.iterdir())) > before:
            await asyncio.sleep(0.01)
        made.close()
