"""Salvage while the store is in use: a consistent snapshot, without losing intact data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.storage import salvage
from tests.storage.stores import raw


def _meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, what: Any) -> None:
    """Make something happen just before a step of the salvage."""
    original = getattr(salvage, step)

    def first(*arguments: Any) -> Any:
        what()
        return original(*arguments)

    monkeypatch.setattr(salvage, step, first)


@pytest.mark.parametrize("step", ["_copy_small", "_copy_messages"])
def test_a_store_in_use_is_saved_as_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    with pelton.sync.open(path) as jet:
        for name in ("one", "two"):
            stream = jet.create_stream(name, retention="workqueue")
            consumer = stream.create_consumer(durable_name="c")
            jet.publish_batch([(name, b"%d" % number) for number in range(50)])
            consumer.fetch(10)

        def work() -> None:
            for name in ("one", "two"):
                jet.publish_batch([(name, b"more")] * 20)
                for message in jet.stream(name).consumer("c").fetch(15):
                    message.ack()
            if "three" not in jet.stream_names():
                jet.create_stream("three")
            jet.publish("three", b"new")

        _meanwhile(monkeypatch, step, work)
        assert pelton.salvage(path, saved) == []
    assert pelton.verify(saved) == []
    with pelton.sync.open(saved) as jet:
        states = {name: jet.stream(name).info().state for name in jet.stream_names()}
    assert {name: (state.messages, state.last_seq) for name, state in states.items()} == {
        "one": (50, 50),
        "two": (50, 50),
    }


async def test_a_damaged_store_that_is_written_meanwhile_is_refused_and_its_backup_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy, saved = (tmp_path / name for name in ("a.pelton", "b.pelton", "c.pelton"))
    async with pelton.open(path, key="secret") as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        await jet.publish_batch([(f"s.{number}", bytes(900)) for number in range(500)])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    async with pelton.open(path, key="secret") as jet:
        stream = await jet.create_stream("other")

        def work() -> None:
            with pelton.sync.open(path, key="secret") as other:
                other.publish("other", b"new")

        with monkeypatch.context() as patch:
            _meanwhile(patch, "_copy_messages", work)
            with pytest.raises(pelton.StoreBusyError, match=r"close it everywhere .* or salvage a backup"):
                pelton.salvage(path, saved, "secret")
        assert not saved.exists()
        pelton.backup(path, copy, key="secret")
        (lost,) = pelton.salvage(copy, saved, "secret")
        assert lost.startswith("stream 's': 4")
        assert pelton.verify(saved, "secret") == []
        await jet.publish("other", b"works on")
        assert (await stream.info()).state.messages == 3


def _damage_root(path: Path, *streams: int, key: str | None = None) -> None:
    """Damage the first page of the message tables of some streams."""
    with raw(path, key) as connection:
        sql = "SELECT rootpage FROM sqlite_schema WHERE name=?"
        roots = [connection.execute(sql, (f"m_{stream}",)).fetchall()[0][0] for stream in streams]
    content = bytearray(path.read_bytes())
    for root in roots:
        for place in range((root - 1) * 4096, (root - 1) * 4096 + 40):
            content[place] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("key", [None, "secret"])
def test_messages_on_whole_pages_are_saved_though_the_first_page_is_damaged(tmp_path: Path, key: str | None) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    with pelton.sync.open(path, key=key) as jet:
        for name in ("s", "t", "u"):
            jet.create_stream(name, subjects=[f"{name}.>"], retention="workqueue")
            jet.publish_batch([(f"{name}.{number % 9}", bytes(200)) for number in range(600)])
            # On pages beside those of the table.
            jet.publish(f"{name}.1", bytes(range(256)) * 100)
        # Their pages are free, and still hold them.
        consumer = jet.stream("s").create_consumer(durable_name="c")
        for message in consumer.fetch(300):
            message.ack()
    _damage_root(path, 1, 2, key=key)
    # Nothing tells whether there were newer messages on the page that is damaged.
    newer = "newer ones may be lost"
    assert pelton.salvage(path, saved, key) == [
        f"stream 's': 301 messages saved; up to 63 {newer}",
        f"stream 't': 601 messages saved; up to 63 {newer}",
    ]
    assert pelton.verify(saved, key) == []
    with pelton.sync.open(saved, key=key) as jet:
        states = [jet.stream(name).info().state for name in ("s", "t", "u")]
        assert [(state.messages, state.first_seq) for state in states] == [(301, 301), (601, 1), (601, 1)]
        assert jet.stream("t").get_message(601).data == bytes(range(256)) * 100
        assert [state.last_seq for state in states] == [664, 663, 601]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.pelton", "b.pelton"]


def test_a_store_that_was_verified_is_salvaged_by_the_same_program(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    pelton.sync.open(path).close()
    program = f"import pelton; print(pelton.verify({str(path)!r}), pelton.salvage({str(path)!r}, {str(saved)!r}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[] []\n"


def _damage_last_leaf(path: Path, stream: int) -> None:
    """Damage the page with the newest messages of a stream."""
    with raw(path) as connection:
        sql = "SELECT pageno FROM dbstat WHERE name=? AND pagetype='leaf' ORDER BY path DESC LIMIT 1"
        [(page,)] = connection.execute(sql, (f"m_{stream}",)).fetchall()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : (page - 1) * 4096 + 8] = b"\xff" * 8
    path.write_bytes(content)


async def test_sequences_on_a_damaged_page_are_not_given_again(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s"])
        jet.publish_batch([("s", bytes(900))] * 100)
        for _ in range(9):
            # The row of the stream does not tell of them.
            jet.publish("s", bytes(900))
    _damage_last_leaf(path, 1)
    async with pelton.open(path) as opened:
        # What is on other pages can be read.
        found = await opened.backend.call(pelton.api.MsgGet(stream="s", seq=50))
        assert found.message.seq == 50
    (lost,) = pelton.salvage(path, saved)
    assert "lost" in lost
    assert pelton.verify(saved) == []
    with pelton.sync.open(saved) as jet:
        assert jet.publish("s", b"new").seq > 109


@pytest.mark.parametrize("key", [None, "secret"])
async def test_what_is_left_of_a_file_that_was_cut_off(tmp_path: Path, key: str | None) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    async with pelton.open(path, key=key) as jet:
        stream = await jet.create_stream("s", subjects=["s.>"])
        await jet.publish_batch([(f"s.{number}", bytes(500)) for number in range(1000)])
        await stream.create_consumer(durable_name="c")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 7])
    before = path.read_bytes()
    with pytest.raises(pelton.StoreError, match=r"cut off: salvage what is left, or restore a backup"):
        await pelton.open(path, key=key)
    assert pelton.verify(path, key)[0].startswith("SQLite: ")
    (lost,) = [line for line in pelton.salvage(path, saved, key) if line.startswith("stream")]
    assert path.read_bytes() == before
    assert pelton.verify(saved, key) == []
    async with pelton.open(saved, key=key) as jet:
        stream = await jet.stream("s")
        kept = (await stream.info()).state.messages
        assert lost == f"stream 's': {kept} messages saved, {1000 - kept} lost"
        assert 300 < kept < 600
        assert (await (await stream.consumer("c")).info()).num_pending == kept


async def test_streams_whose_names_are_cut_off_have_their_messages(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    async with pelton.open(path) as jet:
        for name in ("orders", "events"):
            await jet.create_stream(name, subjects=[f"{name}.>"])
            await jet.publish_batch([(f"{name}.{number}", bytes(100)) for number in range(200)])
        await jet.queue("shop")
    os.truncate(path, path.stat().st_size * 9 // 10)
    lost = pelton.salvage(path, saved)
    assert "the name of a stream is lost: it is SALVAGED_1" in lost
    assert pelton.verify(saved) == []
    async with pelton.open(saved) as jet:
        assert await jet.stream_names() == ["SALVAGED_1", "SALVAGED_2"]
        assert [(await (await jet.stream(name)).info()).state.messages for name in await jet.stream_names()] == [
            200
        ] * 2
        stream = await jet.update_stream("SALVAGED_2", subjects=["events.>"])
        assert (await stream.get_message(200)).subject == "events.199"
        assert (await jet.publish("events.new", b"")).seq == 201
    os.truncate(path, path.stat().st_size // 3)
    with pytest.raises(pelton.StoreError, match="without them no row is found"):
        pelton.salvage(path, tmp_path / "c.pelton")
    # Nothing is left of it, beside either file.
    assert {each.name for each in tmp_path.iterdir()} == {"a.pelton", "a.pelton-damage", "b.pelton"}


@pytest.mark.parametrize("begin", [0, 16, 100])
async def test_without_the_first_page_nothing_is_found_and_it_says_what_to_do(tmp_path: Path, begin: int) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
    content = bytearray(path.read_bytes())
    content[begin:4096] = b"\xee" * (4096 - begin)
    for damaged in (content, content[:4096]):
        path.write_bytes(damaged)
        for call in (lambda: pelton.verify(path), lambda: pelton.salvage(path, tmp_path / "b.pelton")):
            with pytest.raises(pelton.StoreError, match=r"damaged.*restore a backup"):
                call()
        assert path.read_bytes() == damaged
        assert {each.name for each in tmp_path.iterdir()} <= {"a.pelton", "a.pelton-damage"}
    path.write_bytes(b"")
    with pytest.raises(pelton.NotAStoreError, match="empty"):
        pelton.salvage(path, tmp_path / "b.pelton")
    assert path.read_bytes() == b""
