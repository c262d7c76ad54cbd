"""``pelton dashboard``, run as from a shell."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

import pelton
from pelton.cli.watch_commands import _apps
from pelton.dashboard.app import DashboardServer, RequestConnection
from tests.cli.conftest import Run
from tests.kit.served import ServedStore


@contextmanager
def dashboard(address: str, *options: str, warns: bool = False, **environment: str) -> Iterator[str]:
    command = [sys.executable, "-m", "pelton", "dashboard", *address.split(), "--port", "0", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, **environment}, **pipes) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        line = running.stdout.readline()
        try:
            yield line.split()[-1] if line else running.stderr.read()
        finally:
            running.send_signal(signal.SIGTERM)
            status, told = running.wait(30), running.stderr.read()
            assert (status, told != "") == (0, warns), told


def read(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(autouse=True)
def _garage(address: str) -> None:
    with pelton.sync.open(address) as jet:
        jet.queue("garage")


def test_it_is_read_only_and_answers_to_its_own_names(address: str) -> None:
    with dashboard(address) as url:
        assert "garage" in read(url)
        assert "Pause" not in read(f"{url}queues/garage")
        assert "pelton_queue_jobs" in read(f"{url}metrics")
        with pytest.raises(urllib.error.HTTPError, match="421"):
            read(url, host="evil.example")
        # A viewer of the live page does not keep it from ending.
        viewer = urllib.request.urlopen(f"{url}events", timeout=30)
        assert viewer.readline().startswith(b"id: 1")
    viewer.close()


def test_actions_are_there_if_allowed(address: str) -> None:
    with dashboard(address, "--allow-actions") as url:
        assert "Pause" in read(f"{url}queues/garage")


def test_a_token_is_asked_for(address: str) -> None:
    token = "a-token-of-the-operators"
    with dashboard(address, "--host", "0.0.0.0", PELTON_DASHBOARD_TOKEN=token) as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(url)
        assert "Pause" in read(f"{url}queues/garage", authorization=f"Bearer {token}")
    with dashboard(address, "--token", token, "--read-only") as url:
        assert "Pause" not in read(f"{url}queues/garage", authorization=f"Bearer {token}")


def test_what_is_dangerous_or_impossible_is_refused(run: Run) -> None:
    assert "give a --token" in run("dashboard", "--host", "0.0.0.0", status=1).err
    assert "at least 16" in run("dashboard", "--token", "short", status=1).err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot be listened on" in run("dashboard", "--port", taken.getsockname()[1], status=1).err


def test_behind_a_proxy(address: str) -> None:
    with dashboard(address, "--prefix", "/pelton") as url:
        assert url.endswith("/pelton/")
        # Whether the proxy hands on the prefix or takes it away.
        for page in (f"{url}queues/garage", url.replace("/pelton/", "/queues/garage")):
            assert 'href="/pelton/queues"' in read(page)
        assert "pelton_queue_jobs" in read(f"{url}metrics")


def test_several_stores_are_one_page(tmp_path: Path) -> None:
    for name, queue in (("one.pelton", "garage"), ("two.pelton", "kitchen")):
        with pelton.sync.open(tmp_path / name) as jet:
            jet.queue(queue)
    with dashboard(f"{tmp_path}/one.pelton {tmp_path}/two.pelton", "--prefix", "/ops") as url:
        first = read(url)
        assert "garage" in first
        assert 'href="/ops/one.pelton/" aria-current="true"' in first
        assert 'href="/ops/two.pelton/"' in first
        assert "kitchen" in read(f"{url}two.pelton/queues/kitchen")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"{url}two.pelton/queues/garage")


def test_a_dead_cluster_is_said_at_once(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "one.pelton") as jet:
        jet.queue("garage")
        jet.queue("keys", exclusive=True)
    server = ServedStore(tmp_path / "one.pelton")
    server.start()
    try:
        with dashboard(server.url, "--allow-actions", warns=True) as url:
            assert "garage" in read(url)
            assert "keys" in read(f"{url}queues/keys")
            server.kill()
            for page in ("queues/garage", "metrics"):
                with pytest.raises(urllib.error.HTTPError, match="503") as refused:
                    read(f"{url}{page}")
                assert server.url.removeprefix("nats://") in refused.value.read().decode()
    finally:
        server.stop()


async def test_a_request_that_is_never_whole_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestConnection, "within", 0.1)
    go_on = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"well"})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = DashboardServer(slow, listener)
        serving = asyncio.create_task(server.serve())
        asked = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        async with asyncio.timeout(60):
            connections = [await asyncio.open_connection(*listener.getsockname()) for _ in range(3)]
            (reader, writer), (silent, _), (half, begun) = connections
            writer.write(asked)
            begun.write(asked[:-2])
            assert (await silent.read(), await half.read()) == (b"", b"")
            # The answer to one that is whole takes as long as it takes.
            go_on.set()
            assert (await reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
            writer.write(asked[:-2])
            assert await reader.read() == b""
            for _, one in connections:
                one.close()
                await one.wait_closed()
            server.stop()
            await serving


@pytest.mark.parametrize("actions", [True, False])
async def test_only_a_page_with_actions_notes_how_the_store_went(actions: bool, tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton"):
        pass
    options = argparse.Namespace(store=[str(tmp_path / "a.pelton")], key_file=None, prefix="")
    async with AsyncExitStack() as stack:
        await _apps(stack, options, {"tokens": (), "actions": actions, "hosts": ()})
        assert (_NOTING in {task.get_name() for task in asyncio.all_tasks()}) == actions


_NOTING = "pelton notes how the store went"
