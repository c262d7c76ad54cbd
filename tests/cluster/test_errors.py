"""Failures to reach a server, reported clearly."""

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import pelton
from pelton.cluster.client import NatsClient
from tests.kit.nats_server import NatsServer, nats_server

_USERS = "authorization { user: a, password: b }"


async def test_no_server() -> None:
    with pytest.raises(pelton.api.ServerUnreachableError, match=r"127\.0\.0\.1:1"):
        await pelton.open("nats://127.0.0.1:1")


@asynccontextmanager
async def answering(*lines: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that says these lines to each client, and nothing more; yields its address, and its clients' ports."""
    ended, clients = asyncio.Event(), list[int]()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(writer.get_extra_info("peername")[1])
        writer.writelines(lines)
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", clients
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


async def test_a_silent_server_is_given_up_before_one_that_is_slow() -> None:
    async with answering() as (address, clients):
        with pytest.raises(pelton.api.ServerUnreachableError, match=r"no answer within 0\.2 s"):
            await pelton.open(address, patience=0.3)
        assert len(clients) == 1
    async with answering(b'INFO {"version": "2.12.0", "max_payload": 1048576}\r\n') as (address, clients):
        # It has answered, so all of the patience is for the rest.
        with pytest.raises(pelton.api.ServerUnreachableError, match=r"no answer within 0\.3 s"):
            await pelton.open(address, patience=0.3)


async def test_no_connection_is_left_open_that_ended_before_its_first_word() -> None:
    came, served = 0, list[asyncio.StreamWriter]()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        if came in (1, 5):
            writer.write(b'INFO {"version": "2.12.0", "max_payload": 1048576}\r\n')
            served.append(writer)
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()

    client = NatsClient(insists_on_tls=False)
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        back = asyncio.Event()

        async def on_back() -> None:
            back.set()

        port = server.sockets[0].getsockname()[1]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            await client.connect(f"nats://127.0.0.1:{port}", reconnect_time_wait=0, reconnected_cb=on_back)
            served[0].close()
            await back.wait()
            gc.collect()
        assert [str(one.message) for one in warned] == []
        await client.abandon()
    assert came == 5


async def test_behind_a_silent_server_another_one_is_tried(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with answering() as (silent, _):
            for address in (f"{silent},{server.url}", f"{server.url},{silent}"):
                async with pelton.open(address, patience=3) as jet:
                    assert await jet.stream_names() == []


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
