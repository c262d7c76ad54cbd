"""Failures to reach a server, reported clearly."""

import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from tests.kit.nats_server import NatsServer, nats_server

_USERS = "authorization { user: a, password: b }"


async def test_no_server() -> None:
    with pytest.raises(pelton.api.ServerUnreachableError, match=r"127\.0\.0\.1:1"):
        await pelton.open("nats://127.0.0.1:1")


async def test_wrong_credentials(tmp_path: Path) -> None:
    with nats_server(tmp_path, extra=_USERS) as server:
        for wrong in ("", "a:x@", "token@"):
            with pytest.raises(pelton.api.ServerRefusedError):
                await pelton.open(server.url.replace("//", f"//{wrong}"))
        async with pelton.open(server.url.replace("//", "//a:b@")) as jet:
            assert await jet.stream_names() == []


async def test_no_jetstream(tmp_path: Path) -> None:
    with nats_server(tmp_path, jetstream=False) as server, pytest.raises(pelton.api.JetStreamMissingError):
        await pelton.open(server.url)


async def test_no_jetstream_for_the_account(tmp_path: Path) -> None:
    users = "accounts { A { users: [{ user: a, password: b }] } }"
    with nats_server(tmp_path, extra=users) as server, pytest.raises(pelton.api.JetStreamMissingError):
        await pelton.open(server.url.replace("//", "//a:b@"))


def test_without_nats_py() -> None:
    code = (
        "import sys; sys.modules['nats'] = None\n"
        "import pelton\n"
        "try: pelton.open('nats://a')\n"
        "except pelton.ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pelton[cluster]'" in done.stdout


async def test_features_of_the_embedded_engine_are_refused_by_name(jet: pelton.Jet) -> None:
    stream = await jet.create_stream("S")
    with pytest.raises(pelton.ConfigError, match="embedded engine"):
        await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
    assert await jet.stream_names() == ["S"]


async def test_a_closed_connection(server: NatsServer) -> None:
    jet = await pelton.open(server.url)
    await jet.close()
    await jet.close()
    with pytest.raises(pelton.StoreClosedError):
        await jet.stream_names()


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0"])
async def test_what_is_no_subject_is_not_sent(jet: pelton.Jet, subject: str) -> None:
    with pytest.raises(pelton.ConfigError):
        await jet.publish(subject, b"")


async def test_more_than_a_server_takes(jet: pelton.Jet) -> None:
    await jet.create_stream("S")
    with pytest.raises(pelton.MessageTooLargeError):
        await jet.publish("S", bytes(2_000_000))
