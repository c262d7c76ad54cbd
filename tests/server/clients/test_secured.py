"""nats-py as a user of an operator, over TLS and over WebSocket with TLS: the same on both servers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from tests.cluster.people import Certificates
from tests.kit.nats_server import NatsServer, free_ports, nats_server
from tests.kit.served import ServedStore, served_store
from tests.server.auth.keys import ACCOUNT_LIMITS, Key, account_jwt, jwt, user_jwt
from tests.server.conftest import settled

OPERATOR, SYSTEM, SHOP, DEPOT = Key("operator"), Key("account", 1), Key("account", 2), Key("account", 3)
# What nats-py does with aiohttp is not ours.
pytestmark = pytest.mark.filterwarnings("ignore:parameter 'timeout'", "ignore:Unclosed", "ignore:returning true")
STORED = ACCOUNT_LIMITS | {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class Secured(NamedTuple):
    """A server whose users show JWTs; ``folder`` is for their files."""

    port: int
    websocket: int
    trusting: ssl.SSLContext
    folder: Path
    server: NatsServer | ServedStore

    async def connect(
        self, account: Key, number: int, *, scheme: str = "tls", reconnects: bool = False, **claims: Any
    ) -> Client:
        user = Key("user", number)
        token = user_jwt(account, user, claims or None, name=f"u{number}", iat=0)
        path = self.folder / f"{account.public}-{number}.creds"
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        port = self.port if scheme == "tls" else self.websocket
        return await nats.connect(
            f"{scheme}://localhost:{port}",
            tls=self.trusting,
            user_credentials=str(path),
            allow_reconnect=reconnects,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
        )


@pytest.fixture(scope="module", params=["nats", "pelton"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificates = Certificates(folder / "certificates")
    (websocket,) = free_ports(1)
    tls = certificates.configuration()
    price = {"subject": "price.*", "type": "service"}
    tokens = [
        account_jwt(OPERATOR, SYSTEM, iat=0),
        account_jwt(OPERATOR, SHOP, {"limits": STORED, "imports": [{**price, "account": DEPOT.public}]}, iat=0),
        account_jwt(OPERATOR, DEPOT, {"exports": [price]}, iat=0),
    ]
    named = zip((SYSTEM, SHOP, DEPOT), tokens, strict=True)
    preload = "\n".join(f"{key.public}: {token}" for key, token in named)
    operator = jwt(OPERATOR, OPERATOR.public, "operator", nats={"system_account": SYSTEM.public}, iat=0)
    config = f"""
        operator: {operator}
        system_account: {SYSTEM.public}
        resolver: MEMORY
        resolver_preload {{ {preload} }}
        {tls}
        websocket {{ host: 127.0.0.1, port: {websocket}, compression: true, {tls} }}
    """
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    if request.param == "nats":
        with nats_server(folder / "nats", extra=config) as server:
            yield Secured(server.port, websocket, trusting, folder, server)
        return
    (folder / "server.conf").write_text(f"{config}\njetstream {{ store_dir: '{folder}' }}")
    with served_store(None, ["-c", str(folder / "server.conf")]) as served:
        yield Secured(served.port, websocket, trusting, folder, served)


@pytest.mark.parametrize("scheme", ["tls", "wss"])
async def test_a_user_stores_and_reads(scheme: str, secured: Secured) -> None:
    client = await secured.connect(SHOP, 1, scheme=scheme)
    js = client.jetstream()
    await js.add_stream(name=f"S{scheme}", subjects=[f"{scheme}.>"])
    data = bytes(range(256)) * 1000
    assert (await js.publish(f"{scheme}.1", data)).seq == 1
    pull = await js.pull_subscribe(f"{scheme}.>", "c")
    (message,) = await pull.fetch(1, timeout=60)
    assert message.data == data
    await message.ack_sync(timeout=60)
    bucket = await js.create_key_value(bucket=scheme)
    await bucket.put("color", b"green")
    assert (await bucket.get("color")).value == b"green"
    await client.close()


@pytest.mark.parametrize("scheme", ["tls", "wss"])
async def test_a_client_connects_again_when_the_server_is_back(scheme: str, secured: Secured) -> None:
    client = await secured.connect(SHOP, 1, scheme=scheme, reconnects=True)
    heard = await client.subscribe("a")
    await client.flush()
    await asyncio.to_thread(secured.server.stop)
    await asyncio.to_thread(secured.server.start)
    async with asyncio.timeout(60):
        while not client.stats["reconnects"]:
            await asyncio.sleep(0.01)
    await client.publish("a", b"again")
    assert (await heard.next_msg(30)).data == b"again"
    await client.close()


async def test_a_service_of_another_account(secured: Secured) -> None:
    shop, depot = await secured.connect(SHOP, 2), await secured.connect(DEPOT, 3, scheme="wss")

    async def answer(message: Any) -> None:
        await message.respond(b"7")

    await depot.subscribe("price.*", cb=answer)
    await depot.subscribe("other")
    await settled(depot)
    assert (await shop.request("price.rake", b"", timeout=60)).data == b"7"
    with pytest.raises(nats.errors.NoRespondersError):
        await shop.request("other", b"", timeout=60)
    with pytest.raises((nats.errors.Error, nats.js.errors.Error)):
        await depot.jetstream().add_stream(name="X", subjects=["x"])
    for client in (shop, depot):
        await client.close()


async def test_what_a_jwt_does_not_allow(secured: Secured) -> None:
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error))

    client = await secured.connect(SHOP, 4, pub={"deny": ["secret.>"]}, sub={"allow": ["_INBOX.>", "open"]})
    client._error_cb = note
    await client.publish("secret.x", b"")
    await client.subscribe("closed")
    await settled(client)
    assert [error.lower() for error in errors] == [
        'nats: permissions violation for publish to "secret.x"',
        'nats: permissions violation for subscription to "closed"',
    ]
    about = json.loads((await client.request("$SYS.REQ.USER.INFO", b"", timeout=60)).data)["data"]
    assert about["account"] == SHOP.public
    assert about["permissions"]["publish"] == {"deny": ["secret.>"]}
    await client.close()
    with pytest.raises(nats.errors.Error):
        await secured.connect(Key("account", 9), 5)


async def test_the_operators_system_account(secured: Secured) -> None:
    client = await secured.connect(SYSTEM, 6)
    found = json.loads((await client.request("$SYS.REQ.SERVER.PING.VARZ", b"", timeout=60)).data)["data"]
    assert found["system_account"] == SYSTEM.public
    assert found["tls_required"]
    await client.close()
