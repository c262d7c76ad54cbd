"""``pelton dashboard``, run as from a shell."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import pelton
from tests.cli.conftest import Run


@contextmanager
def dashboard(address: str, *options: str, **environment: str) -> Iterator[str]:
    command = [sys.executable, "-m", "pelton", "dashboard", address, "--port", "0", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, **environment}, **pipes) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        line = running.stdout.readline()
        try:
            yield line.split()[-1] if line else running.stderr.read()
        finally:
            running.send_signal(signal.SIGTERM)
            assert (running.wait(30), running.stderr.read()) == (0, "")


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
