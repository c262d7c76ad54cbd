"""Every kind of login, and the errors for those that are refused."""

import asyncio
import json
import ssl
import time
from pathlib import Path

import pytest

import pelton
from tests.cluster.fake import fake_server
from tests.cluster.people import Certificates, Company, Person
from tests.kit.nats_server import free_ports, nats_server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ca")


async def _works(address: str, **options: object) -> None:
    async with pelton.open(address, **options) as jet:  # type: ignore[arg-type]
        await jet.create_stream("S", subjects=["s"])
        assert (await jet.publish("s", b"x")).stream == "S"
        await jet.delete_stream("S")


# --- user, token, nkey, credentials


async def test_user_and_token(tmp_path: Path) -> None:
    with nats_server(tmp_path, extra="authorization { user: a, password: b }") as server:
        await _works(server.url, user="a", password="b")
        with pytest.raises(pelton.api.ServerRefusedError, match="Authorization"):
            await pelton.open(server.url, user="a", password="c")
    (tmp_path / "t").mkdir()
    with nats_server(tmp_path / "t", extra="authorization { token: hush }") as server:
        await _works(server.url, token="hush")
        await _works(server.url.replace("//", "//hush@"))


async def test_nkey(tmp_path: Path) -> None:
    user, stranger = Person(b"U"), Person(b"U")
    (tmp_path / "user.nk").write_text(user.seed + "\n")
    with nats_server(tmp_path, extra=f"authorization {{ users: [{{ nkey: {user.name} }}] }}") as server:
        await _works(server.url, nkey=user.seed)
        await _works(server.url, nkey=tmp_path / "user.nk")
        with pytest.raises(pelton.api.ServerRefusedError):
            await pelton.open(server.url, nkey=stranger.seed)


async def test_credentials_and_their_end(tmp_path: Path) -> None:
    company = Company()
    files = {"good": company.credentials(), "old": company.credentials(expires=int(time.time()) - 60)}
    files["other"] = Company().credentials()
    for name, text in files.items():
        (tmp_path / f"{name}.creds").write_text(text)
    with nats_server(tmp_path, extra=company.configuration()) as server:
        await _works(server.url, credentials=tmp_path / "good.creds")
        for name in ("old", "other"):
            with pytest.raises(pelton.api.ServerRefusedError, match="credentials"):
                await pelton.open(server.url, credentials=tmp_path / f"{name}.creds")


async def test_credentials_that_expire_and_are_renewed(tmp_path: Path) -> None:
    company, file = Company(), tmp_path / "user.creds"
    file.write_text(company.credentials(expires=int(time.time()) + 2))
    with nats_server(tmp_path, extra=company.configuration()) as server:
        async with pelton.open(server.url, credentials=file) as jet:
            await jet.create_stream("S")
            while True:
                try:
                    await jet.publish("S")
                except pelton.api.ServerRefusedError:
                    break
            file.write_text(company.credentials())
            await jet.publish("S", b"again")
            stream = await jet.stream("S")
            assert (await stream.get_last_message("S")).data == b"again"


# --- TLS


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path, certificates: Certificates) -> None:
    with nats_server(tmp_path, extra=certificates.configuration()) as server:
        tls = server.url.replace("nats:", "tls:")
        await _works(tls, tls_ca=certificates.ca)
        await _works(server.url, tls_ca=certificates.ca)
        await _works(tls, tls=ssl.create_default_context(cafile=str(certificates.ca)))
        with pytest.raises(pelton.api.ServerRefusedError, match="certificate"):
            await pelton.open(tls)


async def test_a_client_certificate(tmp_path: Path, certificates: Certificates) -> None:
    cert, key = certificates.client
    with nats_server(tmp_path, extra=certificates.configuration(verify=True)) as server:
        await _works(server.url, tls_ca=certificates.ca, tls_cert=cert, tls_key=key)
        with pytest.raises((pelton.api.ServerRefusedError, pelton.api.ServerUnreachableError)):
            await pelton.open(server.url, tls_ca=certificates.ca)


async def test_nothing_is_said_in_the_clear_where_tls_is_asked_for(tmp_path: Path, certificates: Certificates) -> None:
    with nats_server(tmp_path) as server:
        with pytest.raises(pelton.api.ServerRefusedError, match="no TLS"):
            await pelton.open(server.url.replace("nats:", "tls:"), token="secret")
        with pytest.raises(pelton.api.ServerRefusedError, match="no TLS"):
            await pelton.open(server.url, tls_ca=certificates.ca)


async def test_a_server_that_is_too_old() -> None:
    async with fake_server("2.9.25") as server:
        with pytest.raises(pelton.api.JetStreamMissingError, match=r"its version is 2\.9, and 2\.10 is the oldest"):
            await pelton.open(server.url)
    async with fake_server("2.10.0") as server, pelton.open(server.url) as jet:
        assert (await jet.account_info()).streams == 0


# --- permissions, domains, prefixes, contexts


async def test_no_permission_for_the_api(tmp_path: Path) -> None:
    user = '{ user: a, password: b, permissions: { publish: { deny: "$JS.API.STREAM.CREATE.>" } } }'
    with nats_server(tmp_path, extra=f"authorization {{ users: [{user}] }}") as server:
        async with pelton.open(server.url, user="a", password="b") as jet:
            with pytest.raises(pelton.api.ServerPermissionError, match=r"js\.api\.stream\.create"):
                await jet.create_stream("S")
            assert await jet.stream_names() == []


async def test_who_may_not_ask_whether_others_are_there_does_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    user = '{ user: a, password: b, permissions: { publish: { deny: "_INBOX.>" } } }'
    with nats_server(tmp_path, extra=f"authorization {{ users: [{user}] }}") as server:
        async with pelton.open(server.url, user="a", password="b") as jet:
            other = jet.backend.clone()
            name = await other.presence()
            await other.close()
            for _ in range(3):
                assert not await jet.backend.is_gone(name)
            assert len([record for record in caplog.records if "permissions violation" in record.message.lower()]) == 1
            await (await jet.lock("car1").acquire()).release()


@pytest.mark.parametrize("kind", ["publish", "subscribe"])
async def test_no_permission_at_all(tmp_path: Path, kind: str) -> None:
    user = f'{{ user: a, password: b, permissions: {{ {kind}: "nothing" }} }}'
    with (
        nats_server(tmp_path, extra=f"authorization {{ users: [{user}] }}") as server,
        pytest.raises(pelton.api.ServerPermissionError, match=r"docs/guides/servers/cluster\.md"),
    ):
        await pelton.open(server.url, user="a", password="b")


async def test_an_inbox_prefix_of_ones_own(tmp_path: Path) -> None:
    user = '{ user: a, password: b, permissions: { subscribe: "_INBOX_a.>" } }'
    with nats_server(tmp_path, extra=f"authorization {{ users: [{user}] }}") as server:
        async with pelton.open(server.url, user="a", password="b", inbox_prefix="_INBOX_a") as jet:
            consumer = await (await jet.create_stream("S")).create_consumer(durable_name="c")
            await jet.publish("S", b"x")
            (message,) = await consumer.fetch(1)
            await message.ack()
            with pytest.raises(pelton.api.ServerPermissionError, match="subscription"):
                await jet.backend.subscribe("other")  # type: ignore[attr-defined]


async def test_a_domain(tmp_path: Path) -> None:
    with nats_server(tmp_path, domain="hub") as server:
        await _works(server.url, domain="hub")
        await _works(server.url, api_prefix="$JS.hub.API.")
        with pytest.raises(pelton.api.JetStreamMissingError, match=r"\$JS\.leaf\.API"):
            await pelton.open(server.url, domain="leaf")


async def _connected_to_the_hub(address: str) -> pelton.Jet:
    """Open the hub's store as soon as the leaf has found it."""
    while True:
        try:
            return await pelton.open(address, domain="hub")
        except pelton.api.JetStreamMissingError:
            await asyncio.sleep(0)


async def test_a_domain_behind_a_leaf(tmp_path: Path) -> None:
    """Asked for by domain, the hub's streams are published to, read and acked through a server that has its own."""
    (port,) = free_ports(1)
    with nats_server(tmp_path / "hub", domain="hub", extra=f'leafnodes {{ listen: "127.0.0.1:{port}" }}') as hub:
        remote = f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}" }}] }}'
        with nats_server(tmp_path / "leaf", domain="leaf", extra=remote) as leaf:
            there = await _connected_to_the_hub(leaf.url)
            async with there, pelton.open(hub.url) as home:
                stream = await there.create_stream("S", subjects=["s"], retention="workqueue", allow_direct=True)
                assert (await there.publish("s", b"x")).domain == "hub"
                assert await home.stream_names() == ["S"]
                assert (await stream.get_message(1)).data == b"x"
                (message,) = await (await stream.create_consumer(durable_name="c")).fetch(1)
                await message.ack()
                assert (await stream.info()).state.messages == 0
            async with pelton.open(leaf.url) as here:
                assert await here.stream_names() == []


async def test_acks_under_subjects_that_name_domain_and_account(tmp_path: Path) -> None:
    with nats_server(tmp_path, domain="hub", extra="feature_flags { js_ack_fc_v2: true }") as server:
        async with pelton.open(server.url) as jet:
            stream = await jet.create_stream("S", retention="workqueue")
            consumer = await stream.create_consumer(durable_name="c")
            heard = await jet.backend.subscribe("$JS.ACK.>")  # type: ignore[attr-defined]
            await jet.publish_batch([("S", b"1"), ("S", b"2")])
            one, two = await consumer.fetch(2)
            await one.nak()
            await two.ack()
            (again,) = await consumer.fetch(1, timeout=60)
            assert (again.data, again.metadata.num_delivered) == (b"1", 2)
            await again.ack()
            assert (await stream.info()).state.messages == 0
            assert await heard.next(5) is not None


async def test_a_context_of_the_nats_tool(tmp_path: Path) -> None:
    with nats_server(tmp_path, extra="authorization { user: a, password: b }", domain="hub") as server:
        context = {"description": "", "url": server.url, "user": "a", "password": "b", "jetstream_domain": "hub"}
        file = tmp_path / "prod.json"
        file.write_text(json.dumps(context | {"creds": "", "nsc": "", "inbox_prefix": "_INBOX_x", "color_scheme": ""}))
        await _works(f"context:{file}")
        with pytest.raises(pelton.api.ServerRefusedError):
            await pelton.open(f"context:{file}", token="outweighs the user")
