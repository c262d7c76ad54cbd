"""``pelton serve`` as a process: how it starts, ends, and comes back."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import nats
import pytest
from nats.js.api import RetentionPolicy

import pelton
from tests.kit.nats_server import NatsServer, nats_server
from tests.kit.served import ServedStore, served_store


async def test_it_starts_serves_and_stops(tmp_path: Path) -> None:
    with served_store(tmp_path / "s.pelton") as server:
        client = await nats.connect(server.url, allow_reconnect=False)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"kept")
        assert "Listening for client connections on 127.0.0.1:" in server.log
        assert server.stop() == 0
        await client.close()
    async with pelton.open(tmp_path / "s.pelton") as jet:
        assert (await (await jet.stream("S")).get_message(1)).data == b"kept"


async def test_an_ack_that_asks_for_no_answer_outlives_a_kill(tmp_path: Path) -> None:
    with served_store(tmp_path / "s.pelton") as server:
        client = await nats.connect(server.url, allow_reconnect=False)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"], retention=RetentionPolicy.WORK_QUEUE)
        for number in range(12):
            await js.publish("s", b"%d" % number)
        for message in (await (await js.pull_subscribe("s", "c")).fetch(12))[:10]:
            await message.ack()
        assert (await js.consumer_info("S", "c")).num_ack_pending == 2
        server.kill()
        server.start()
        client = await nats.connect(server.url)
        js = client.jetstream()
        assert (await js.consumer_info("S", "c")).num_ack_pending == 2
        assert (await js.stream_info("S")).state.messages == 2
        await client.close()


async def test_killed_under_load_it_loses_nothing_acknowledged_and_clients_go_on(tmp_path: Path) -> None:
    with served_store(tmp_path / "s.pelton") as server:
        client = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
        js = client.jetstream(timeout=1)
        await js.add_stream(name="S", subjects=["s"])
        acknowledged: list[int] = []

        async def publish(number: int) -> None:
            while True:
                try:
                    await js.publish("s", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
                except (nats.errors.Error, nats.js.errors.Error, OSError):
                    await asyncio.sleep(0.05)
                    continue
                acknowledged.append(number)
                return

        async def several(first: int) -> None:
            for number in range(first, first + 100):
                await publish(number)

        running = [asyncio.ensure_future(several(100 * each)) for each in range(5)]
        while len(acknowledged) < 100:
            await asyncio.sleep(0.01)
        port = server.port
        server.kill()
        before = list(acknowledged)
        server.start()
        assert server.port == port
        await asyncio.gather(*running)
        await client.close()
        server.stop()
    async with pelton.open(tmp_path / "s.pelton") as jet:
        stream = await jet.stream("S")
        stored = [int((await stream.get_message(seq)).data) for seq in range(1, 501)]
        assert sorted(stored) == list(range(500))
        assert set(before) <= set(stored)


@pytest.mark.parametrize("which", ["nats", "pelton"])
async def test_a_lame_duck_tells_its_clients_and_lets_them_go(which: str, tmp_path: Path) -> None:
    config = 'lame_duck_grace_period: "100ms"\nlame_duck_duration: "30s"\nclient_advertise: "example.com:77"\n'
    (tmp_path / "s.conf").write_text(config)
    with ExitStack() as stack:
        server: NatsServer | ServedStore
        if which == "nats":
            server = stack.enter_context(nats_server(tmp_path, extra=config))
        else:
            server = stack.enter_context(served_store(tmp_path / "s.pelton", ("-c", str(tmp_path / "s.conf"))))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        # A server on its own names no others.
        told = json.loads((await reader.readline())[len(b"INFO ") :])
        assert (told["host"], told["port"]) == ("example.com", 77)
        assert not {"connect_urls", "ldm"} & told.keys()
        writer.write(b'CONNECT {"protocol":1,"verbose":false}\r\nPING\r\n')
        while await reader.readline() != b"PONG\r\n":
            pass
        os.kill(server.pid, signal.SIGUSR2)
        while b'"ldm":true' not in (line := await reader.readline()):
            assert line
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()
        if isinstance(server, ServedStore):
            assert await asyncio.to_thread(server.wait) == 0


def test_check_and_usage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pelton", "serve"]
    done = subprocess.run([*command, "-t", "s.pelton", "--max_payload", "8MB"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "the settings are valid\n")
    done = subprocess.run([*command, "-t", "s.pelton", "--max_payload", "128MB"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "max_payload" in done.stderr
    done = subprocess.run([*command, "-js", "-sd", "/proc/x"], capture_output=True, text=True)
    assert (done.returncode, "cannot be made" in done.stderr) == (1, True)


async def test_without_a_store_it_is_core_nats_and_with_js_it_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with served_store(None) as server:
        client = await nats.connect(server.url, allow_reconnect=False)
        heard = await client.subscribe("s")
        await client.publish("s", b"x")
        assert (await heard.next_msg(timeout=10)).data == b"x"
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("$JS.API.INFO", b"")
        await client.close()
        assert server.stop() == 0
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "pelton" / "jetstream"
    for found in (0, 1):
        with served_store(None, ["-js"]) as server:
            assert f'Store Directory: "{folder}"' in server.log
            client = await nats.connect(server.url, allow_reconnect=False)
            js = client.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            assert (await js.publish("s", b"x")).seq == found + 1
            await client.close()
            assert server.stop() == 0
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_the_file_with_the_ports_is_there_while_it_runs(tmp_path: Path) -> None:
    flags = ["--ports_file_dir", str(tmp_path), "-m", "-1", "--websocket_port", "-1"]
    with served_store(None, flags) as server:
        (file,) = tmp_path.iterdir()
        assert file.name == f"nats-server_{server.pid}.ports"
        found = json.loads(file.read_text())
        assert found["nats"] == [server.url]
        assert re.fullmatch(r"http://127.0.0.1:\d+", *found["monitoring"])
        assert re.fullmatch(r"ws://127.0.0.1:\d+", *found["websocket"])
        assert server.stop() == 0
    assert not list(tmp_path.iterdir())


async def test_a_folder_for_stores_and_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    command = [
        sys.executable,
        "-m",
        "pelton",
        "serve",
        f"-sd={tmp_path / 'stores'}",
        "-p",
        "-1",
        f"--unix={path}",
        "-js",
    ]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while b"ready" not in await process.stderr.readline():
        pass
    reader, writer = await asyncio.open_unix_connection(str(path))
    assert b'"jetstream":true' in await reader.readline()
    writer.write(b"PING\r\n")
    assert await reader.readline() == b"PONG\r\n"
    writer.close()
    process.terminate()
    assert await process.wait() == 0
    assert (tmp_path / "stores" / "$G.pelton").exists()
    assert not path.exists()


async def test_a_store_that_is_gone_ends_the_server(tmp_path: Path) -> None:
    with served_store(tmp_path / "s.pelton") as server:
        client = await nats.connect(server.url, allow_reconnect=False)
        js = client.jetstream(timeout=1)
        await js.add_stream(name="S", subjects=["s"])
        (tmp_path / "s.pelton").rename(tmp_path / "moved.pelton")
        with suppress(nats.errors.Error, nats.js.errors.Error):
            await js.publish("s", b"x")
        assert await asyncio.to_thread(server.wait) == 1
        assert "is not at its path any more" in server.log
        await client.close()
