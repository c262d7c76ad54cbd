"""``pelton copy``, from a file and from a cluster to a file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from tests.cli.conftest import Run


def test_a_store_is_copied_and_not_overwritten(run: Run, address: str, tmp_path: Path) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    for number in range(3):
        run("pub", f"orders.{number}", f"body {number}")
    run("kv", "add", "colours")
    target = tmp_path / "copy.pelton"
    lines = run("copy", address, target).lines
    assert [line.split()[:2] for line in lines[1:]] == [["KV_colours", "0"], ["orders", "3"]]
    (orders,) = run("copy", address, target, "--stream", "orders", "--json").json["streams"]
    assert (orders["messages"], orders["was_there"]) == (3, True)
    with pelton.sync.open(target) as jet:
        jet.publish("orders.new", b"")
    assert "nothing is overwritten" in run("copy", address, target, status=1).err
    assert run("copy", address, target, "--stream", "nothing", status=1).out == ""
    if not address.startswith("nats:"):
        assert run("copy", tmp_path / "none.pelton", target, status=1).out == ""


def test_what_cannot_be_kept_is_told(run: Run, address: str, tmp_path: Path) -> None:
    run("stream", "add", "orders", "--subjects", "orders.>")
    run("pub", "orders.1", "x")
    assert not [line for line in run("copy", address, tmp_path / "copy.pelton").lines if line.startswith("not kept")]
    source = tmp_path / "copy.pelton"
    run("stream", "rm", address, "orders", "-f")
    told = [line for line in run("copy", source, address).lines if line.startswith("not kept")]
    assert bool(told) == address.startswith("nats:")


@pytest.mark.parametrize("address", ["file"], indirect=True)
def test_a_standby_is_followed_shown_and_promoted(run: Run, tmp_path: Path) -> None:
    store, standby = tmp_path / "shop.pelton", tmp_path / "standby.pelton"
    with pelton.sync.open(store) as jet:
        jet.create_stream("orders", subjects=["orders"])
        jet.publish("orders", b"")
    assert "give --follow as well" in run("copy", store, standby, "--demote", status=1).err
    assert "name a TARGET" in run("copy", store, status=1).err
    assert "is no standby" in run("copy", "--status", store, status=1).err
    follower = subprocess.Popen(
        [sys.executable, "-m", "pelton", "copy", str(store), str(standby), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert "up to date" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(20) == 0
    follower.stdout.close()
    assert run("copy", "--status", standby).lines[0] == f"{standby} is a standby"
    shown = run("copy", "--status", standby, "--json").json
    assert (shown["state"], shown["source"], shown["lag_messages"]) == ("standby", str(store), 0)
    assert "pelton promote" in run("pub", standby, "orders", "x", status=1).err
    assert run("promote", standby).lines[1] == "nothing is lost"
    run("pub", standby, "orders", "x")
    assert "was replaced by its standby" in run("pub", store, "orders", "x", status=1).err
    assert "promoted; it replaces" in run("audit", standby).out
