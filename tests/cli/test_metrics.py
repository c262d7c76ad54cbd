"""``pelton metrics``, run as from a shell."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest

import pelton
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _orders(address: str) -> None:
    with pelton.sync.open(address) as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish("orders.1", b"a spade")


def test_metrics_are_printed_once(run: Run) -> None:
    assert 'jetstream_stream_total_messages{stream_name="orders"} 1.0' in run("metrics", "--once").lines
    samples = run("metrics", "--json").json
    assert {"metric": "jetstream_server_total_streams", "labels": [], "value": 1} in samples


def test_metrics_are_served_until_a_signal(address: str) -> None:
    command = [sys.executable, "-m", "pelton", "metrics", address, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        url = running.stdout.readline().split()[-1]
        # A client that never ends its request holds up no other, nor the end.
        silent = socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(url).port), timeout=30)
        silent.send(b"GET / HTTP/1.1\r\n")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b'jetstream_stream_total_messages{stream_name="orders"} 1.0' in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + "/x", timeout=30)
        running.send_signal(signal.SIGTERM)
        try:
            assert (running.wait(30), running.stderr.read()) == (0, "")
        finally:
            silent.close()
            # Or the end of this block would wait for ever.
            running.kill()


def test_a_port_that_is_taken_is_told(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot be listened on" in run("metrics", "--port", taken.getsockname()[1], status=1).err
