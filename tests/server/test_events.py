"""What a server tells the system account by itself; nats-server tells the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from pelton.server import Server
from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.conftest import Connected, Started, settled
from tests.server.raw import raw_client

CONFIG = """
accounts { $SYS { users: [{user: s, password: p}] }, A { users: [{user: a, password: p}] } }
no_auth_user: a
"""


@pytest.fixture(scope="module", params=["nats", "pelton"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("events")
    if request.param == "nats":
        with nats_server(folder, jetstream=False, extra=CONFIG) as running:
            yield running.port
        return
    (folder / "server.conf").write_text(f"{CONFIG}\njetstream {{ store_dir: '{folder}' }}")
    with served_store(None, ["-c", str(folder / "server.conf")]) as served:
        yield served.port


async def test_who_comes_and_goes(port: int) -> None:
    told: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def note(message: Any) -> None:
        told.put_nowait((message.subject, json.loads(message.data)))

    async def event(end: str) -> dict[str, Any]:
        while True:
            subject, body = await asyncio.wait_for(told.get(), 60)
            if subject.endswith(end):
                return body

    system = await nats.connect(f"nats://s:p@127.0.0.1:{port}")
    await system.subscribe("$SYS.ACCOUNT.>", cb=note)
    await system.subscribe("$SYS.SERVER.>", cb=note)
    await settled(system)
    client = await nats.connect(f"nats://a:p@127.0.0.1:{port}", name="w")
    assert (await event("ACCOUNT.A.SERVER.CONNS"))["conns"] == 1
    came = await event("$SYS.ACCOUNT.A.CONNECT")
    assert came["type"] == "io.nats.server.advisory.v1.client_connect"
    shown = ("host", "acc", "user", "name", "lang", "kind", "client_type")
    assert [came["client"][key] for key in shown] == ["127.0.0.1", "A", "a", "w", "python3", "Client", "nats"]
    await client.publish("x", b"12")
    await client.flush()
    await client.close()
    gone = await event("$SYS.ACCOUNT.A.DISCONNECT")
    assert gone["type"] == "io.nats.server.advisory.v1.client_disconnect"
    assert (gone["reason"], gone["sent"]) == ("Client Closed", {"msgs": 1, "bytes": 2})
    assert {"start", "stop", "id"} <= gone["client"].keys()
    assert {"name", "id", "ver", "host", "time", "seq"} <= gone["server"].keys()
    async with raw_client(port, '{"verbose":false,"name":"n","protocol":1}') as nobody:
        # It is let in without a name, and has come when it has introduced itself.
        came = await event("$SYS.ACCOUNT.A.CONNECT")
        assert [came["client"][key] for key in ("acc", "user", "name")] == ["A", "a", "n"]
        assert await nobody.settle() == []
        told_of_account = await nobody.info()
        assert (told_of_account.connect_info, told_of_account.remote_account) == (True, "A")
    async with raw_client(port, '{"verbose":false,"user":"a","pass":"bad"}') as stranger:
        assert await stranger.take(1) == ["-ERR Authorization Violation"]
    refused = await event("CLIENT.AUTH.ERR")
    assert (refused["reason"], refused["client"]["user"]) == ("Authentication Failure", "a")
    stats = await event("STATSZ")
    assert stats["statsz"]["connections"] == 1
    await system.close()


class EverybodySystem:
    """Lets everybody into the system account."""

    def is_required(self, kind: str = "STANDARD") -> bool:
        return True

    wants_nonce = False

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        return LoginRefusal("nobody is anonymous")

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        return ServerUser(name="op", account="$SYS")


async def test_that_it_ends(started: Started, connected: Connected) -> None:
    server: Server = await started(
        authenticator=EverybodySystem(), lame_duck_grace_period=0.01, lame_duck_duration=0.01
    )
    client = await connected(server)
    told = await client.subscribe(f"$SYS.SERVER.{server.id}.*")
    await settled(client)
    ending = asyncio.ensure_future(server.lame_duck())
    lame = await told.next_msg(5)
    assert lame.subject.endswith(".LAMEDUCK")
    assert json.loads(lame.data)["id"] == server.id
    await ending
