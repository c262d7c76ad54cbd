"""Reports and commands for the system account, and what other accounts may ask: as on nats-server."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.aio.client import Client

from pelton.wire.protocol import role_of
from tests.kit.nats_server import free_ports, nats_server
from tests.kit.served import served_store
from tests.server.conftest import settled

CONFIG = """
server_name: x
http: 127.0.0.1:HTTP
accounts {
  SYS { users: [{user: s, password: p}] }
  A { jetstream: enabled
      users: [{user: a, password: p, permissions: {
        publish: {allow: [">"], deny: ["no.>"]}, subscribe: ">", allow_responses: {max: 5, expires: "1m"}}}]
      exports: [{service: "q.*"}] }
  B { users: [{user: b, password: p}], imports: [{service: {account: A, subject: "q.*"}}] }
}
system_account: SYS
"""


class Running(NamedTuple):
    port: int
    http: int


@pytest.fixture(scope="module", params=["nats", "pelton"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("system")
    (reports,) = free_ports(1)
    config = CONFIG.replace("HTTP", str(reports))
    if request.param == "nats":
        with nats_server(folder, extra=config) as server:
            yield Running(server.port, reports)
        return
    limits = "max_file_store: 8G, max_memory_store: 1G"
    (folder / "server.conf").write_text(f"{config}\njetstream {{ store_dir: '{folder}', {limits} }}")
    with served_store(None, ["-c", str(folder / "server.conf")]) as served:
        yield Running(served.port, reports)


class Users(NamedTuple):
    system: Client
    a: Client
    b: Client


@pytest.fixture
async def users(running: Running) -> AsyncIterator[Users]:
    clients = [
        await nats.connect(f"nats://{user}:p@127.0.0.1:{running.port}", name=user, allow_reconnect=False)
        for user in "sab"
    ]
    yield Users(*clients)
    for client in clients:
        await client.close()


def status_of(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{path}")
    status = connection.getresponse().status
    connection.close()
    return status


async def ask(client: Client, subject: str, **body: Any) -> dict[str, Any]:
    data = json.dumps(body).encode() if body else b""
    found: dict[str, Any] = json.loads((await client.request(subject, data, timeout=60)).data)
    return found


async def test_reports(users: Users) -> None:
    id = (await ask(users.system, "$SYS.REQ.SERVER.PING.IDZ"))["id"]
    await users.a.subscribe("foo.*", queue="q")
    await settled(users.a)
    for end in ("STATSZ", "VARZ", "CONNZ", "SUBSZ", "JSZ", "ACCOUNTZ", "HEALTHZ", "ROUTEZ", "GATEWAYZ", "LEAFZ"):
        found = await ask(users.system, f"$SYS.REQ.SERVER.{id}.{end}")
        assert found["server"]["name"] == "x"
        assert "error" not in found
    assert (await ask(users.system, "$SYS.REQ.SERVER.PING.VARZ"))["data"]["system_account"] == "SYS"
    assert (await ask(users.system, "$SYS.REQ.SERVER.PING.VARZ", server_name="x"))["data"]
    for end in ("CONNZ", "SUBSZ", "JSZ", "INFO", "STATZ"):
        assert "error" not in await ask(users.system, f"$SYS.REQ.ACCOUNT.A.{end}")
    connz = (await ask(users.system, "$SYS.REQ.SERVER.PING.CONNZ", acc="A", subscriptions_detail=True, auth=True))[
        "data"
    ]
    (client,) = connz["connections"]
    assert [client[key] for key in ("name", "account", "authorized_user")] == ["a", "A", "a"]
    assert {"subject": "foo.*", "qgroup": "q"}.items() <= client["subscriptions_list_detail"][-1].items()
    subsz = (await ask(users.system, "$SYS.REQ.SERVER.PING.SUBSZ", subscriptions=True, account="A", test="foo.x"))[
        "data"
    ]
    assert [(one["subject"], one["account"]) for one in subsz["subscriptions_list"]] == [("foo.*", "A")]
    info = (await ask(users.system, "$SYS.REQ.ACCOUNT.A.INFO"))["data"]
    assert [info[key] for key in ("client_connections", "jetstream_enabled")] == [1, True]
    assert info["exports"] == [{"subject": "q.*", "type": "service", "response_type": "Singleton"}]


async def test_figures(users: Users) -> None:
    found = await ask(users.system, "$SYS.REQ.SERVER.PING.VARZ")
    server, data = found["server"], found["data"]
    assert (role_of(server["id"]), server["id"], server["flags"]) == ("server", data["server_id"], 7)
    assert (await ask(users.system, "$SYS.REQ.SERVER.PING.IDZ"))["id"] == server["id"]
    assert data["auth_required"]
    assert data["config_digest"].startswith("sha256:")
    assert [data[key] for key in ("tls_timeout", "http_host", "http_base_path", "stalled_clients")] == [
        2,
        "127.0.0.1",
        "",
        0,
    ]
    assert data["slow_consumer_stats"] == {"clients": 0, "routes": 0, "gateways": 0, "leafs": 0}
    for stats in (data, (await ask(users.system, "$SYS.REQ.SERVER.PING"))["statsz"]):
        config = stats["jetstream"]["config"]
        assert (config["max_memory"], config["max_storage"]) == (10**9, 8 * 10**9)
        assert (stats["jetstream"]["stats"]["accounts"], stats["gomaxprocs"] >= 1) == (1, True)
    conns = await ask(users.system, "$SYS.REQ.ACCOUNT.A.CONNS")
    assert (conns["type"], conns["conns"]) == ("io.nats.server.advisory.v1.account_connections", 1)
    assert {"id", "timestamp", "num_subscriptions"} <= conns.keys()
    assert conns["sent"].keys() == {"msgs", "bytes", "gateways", "routes", "leafs"}
    again = await ask(users.system, "$SYS.REQ.SERVER.PING.VARZ")
    assert again["server"]["seq"] > server["seq"] > 0
    limits = (await ask(users.a, "$JS.API.INFO"))["limits"]
    assert (limits["max_memory"], limits["max_storage"]) == (-1, -1)


async def test_reports_are_no_requests_to_the_api(users: Users) -> None:
    config = {"name": "S", "subjects": ["s"], "max_bytes": 1000}
    await ask(users.a, "$JS.API.STREAM.CREATE.S", **config)
    await ask(users.a, "$JS.API.CONSUMER.CREATE.S.c", stream_name="S", config={"durable_name": "c"})
    audits = await users.a.subscribe("$JS.EVENT.ADVISORY.API")
    await settled(users.a)
    before = (await ask(users.a, "$JS.API.INFO"))["api"]
    details = {"accounts": True, "streams": True, "consumer": True, "config": True}
    found = await ask(users.system, "$SYS.REQ.SERVER.PING.JSZ", **details)
    for subject in ("SERVER.PING", "SERVER.PING.HEALTHZ", "ACCOUNT.A.JSZ", "SERVER.PING.VARZ"):
        await ask(users.system, f"$SYS.REQ.{subject}")
    after = (await ask(users.a, "$JS.API.INFO"))["api"]
    assert (after["total"] - before["total"], after["errors"]) == (1, before["errors"])
    await settled(users.a)
    audited = [json.loads((await audits.next_msg(60)).data)["subject"] for _ in range(2)]
    assert (audited, audits.pending_msgs) == (["$JS.API.INFO"] * 2, 0)
    (account,) = found["data"]["account_details"]
    assert [account[name] for name in ("accounts", "ha_assets", "reserved_memory", "reserved_storage")] == [
        0,
        0,
        (1 << 64) - 1,
        (1 << 64) - 1,
    ]
    (stream,) = account["stream_detail"]
    assert stream["cluster"]["leader"] == "x"
    assert stream["config"]["metadata"]["_nats.req.level"] == "0"
    (consumer,) = stream["consumer_detail"]
    assert consumer["config"]["metadata"]["_nats.req.level"] == "0"
    await ask(users.a, "$JS.API.STREAM.DELETE.S")


async def test_what_makes_no_sense(users: Users, running: Running) -> None:
    for subject, body, text in (
        ("SERVER.PING.CONNZ", {"sort": "bogus"}, "invalid sorting option: bogus"),
        ("SERVER.PING.CONNZ", {"sort": "stop"}, "sort by stop only valid on closed connections"),
        ("ACCOUNT.NONE.INFO", {}, "Account NONE does not exist"),
        ("ACCOUNT.NONE.JSZ", {}, 'account "NONE" not found'),
        ("ACCOUNT.B.JSZ", {}, 'account "B" not jetstream enabled'),
    ):
        found = await ask(users.system, f"$SYS.REQ.{subject}", **body)
        assert found["error"] == {"code": 500, "description": text}
    for path, status in (
        ("connz?sort=bogus", 400),
        ("connz?state=bogus", 400),
        ("connz?auth=x", 400),
        ("connz?limit=x", 400),
        ("subsz?test=a..b&subs=1", 400),
        ("accountz?acc=NONE", 400),
        ("healthz?stream=NONE", 400),
        ("healthz?account=NONE", 404),
        ("healthz?account=A&consumer=c", 400),
        ("healthz?js-enabled-only=1", 200),
    ):
        assert await asyncio.to_thread(status_of, running.http, path) == status, path


async def test_other_accounts_ask_for_themselves_alone(users: Users) -> None:
    for subject in ("$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"):
        found = (await ask(users.a, subject, acc="B"))["data"]
        assert [one["name"] for one in found["connections"]] == ["a"]
    (own,) = (await ask(users.b, "$SYS.REQ.ACCOUNT.PING.STATZ", accounts=["A"]))["data"]["account_statz"]
    assert (own["acc"], own["conns"]) == ("B", 1)
    for subject in ("SERVER.PING", "SERVER.PING.VARZ", "ACCOUNT.B.CONNZ", "ACCOUNT.A.INFO"):
        with pytest.raises(nats.errors.NoRespondersError):
            await users.a.request(f"$SYS.REQ.{subject}", b"", timeout=60)


async def test_a_user_is_told_its_permissions(users: Users) -> None:
    assert (await ask(users.a, "$SYS.REQ.USER.INFO"))["data"] == {
        "user": "a",
        "account": "A",
        "account_name": "A",
        "permissions": {
            "publish": {"allow": [">"], "deny": ["no.>"]},
            "subscribe": {"allow": [">"]},
            "responses": {"max": 5, "ttl": 60_000_000_000},
        },
    }
    assert (await ask(users.b, "$SYS.REQ.USER.INFO"))["data"] == {"user": "b", "account": "B", "account_name": "B"}


async def test_a_client_is_sent_away(users: Users, running: Running) -> None:
    gone, id = asyncio.Event(), (await ask(users.system, "$SYS.REQ.SERVER.PING.IDZ"))["id"]

    async def note() -> None:
        gone.set()

    other = await nats.connect(
        f"nats://b:p@127.0.0.1:{running.port}", name="other", allow_reconnect=False, closed_cb=note
    )
    number = other.client_id
    assert "error" not in await ask(users.system, f"$SYS.REQ.SERVER.{id}.LDM", cid=number)
    assert "error" not in await ask(users.system, f"$SYS.REQ.SERVER.{id}.KICK", cid=number)
    await asyncio.wait_for(gone.wait(), 60)
    assert "error" in await ask(users.system, f"$SYS.REQ.SERVER.{id}.KICK", cid=number)
    found = (await ask(users.system, "$SYS.REQ.SERVER.PING.CONNZ", state=1, auth=True, sort="stop"))["data"]
    shown = [(one["name"], one["reason"]) for one in found["connections"] if one["cid"] == number]
    assert shown == [("other", "Kicked")]
    assert "error" not in await ask(users.system, f"$SYS.REQ.SERVER.{id}.RELOAD")


async def test_the_server_counts_its_own_subscriptions(users: Users) -> None:
    async def counts() -> dict[str, int]:
        found = {name: (await ask(users.system, f"$SYS.REQ.ACCOUNT.{name}.INFO"))["data"] for name in ("SYS", "A", "B")}
        total = (await ask(users.system, "$SYS.REQ.SERVER.PING.VARZ"))["data"]["subscriptions"]
        assert total == (await ask(users.system, "$SYS.REQ.SERVER.PING"))["statsz"]["subscriptions"]
        return {name: one["subscriptions"] for name, one in found.items()} | {"all": total}

    await ask(users.a, "$JS.API.STREAM.CREATE.first", name="first", storage="memory")
    # With the inboxes of the three; clients of other tests may not have left yet.
    before = await counts()
    assert before["all"] == sum(before.values()) - before["all"] + 5
    base = {"SYS": 60, "A": 6, "B": 5}
    assert all(before[name] >= count for name, count in base.items())
    streams: list[dict[str, Any]] = [
        {"name": "S", "subjects": ["s.*"], "allow_direct": True},
        {"name": "T", "subjects": ["t", "t2"]},
        {"name": "M", "mirror": {"name": "S"}, "mirror_direct": True},
    ]
    for stream in streams:
        await ask(users.a, f"$JS.API.STREAM.CREATE.{stream['name']}", storage="memory", **stream)
    consumers: list[dict[str, Any]] = [
        {"ack_policy": "none"},
        {"ack_policy": "all"},
        {"ack_policy": "none", "deliver_subject": "d1"},
        {"ack_policy": "explicit", "deliver_subject": "d2", "flow_control": True, "idle_heartbeat": 5_000_000_000},
    ]
    for number, config in enumerate(consumers):
        name = f"c{number}"
        await ask(users.a, f"$JS.API.CONSUMER.CREATE.T.{name}", stream_name="T", config={"name": name, **config})
    after = await counts()
    # The streams' subjects, and how messages of one are asked for directly; what consumers are asked and told.
    assert {name: after[name] - before[name] for name in after} == {"SYS": 4, "A": 5 + 14, "B": 0, "all": 23}
    for stream in ("first", "S", "T", "M"):
        await ask(users.a, f"$JS.API.STREAM.DELETE.{stream}")
    assert (await counts())["A"] == before["A"] - 1
