"""``pelton copy``, from a file and from a cluster to a file."""

from __future__ import annotations

from pathlib import Path

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
