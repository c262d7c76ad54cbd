"""Encrypted stores: which keys open them, which do not, what is on the disk, and how keys change."""

from __future__ import annotations

import asyncio
import shutil
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import pelton
from pelton.api.keys import Key
from pelton.engine.salvage import recount
from tests.storage.processes import Child
from tests.storage.stores import last_seq

_SECRETS = (b"payload-secret", b"header-secret", b"subject-secret", b"stream-secret", b"consumer-secret", b"id-secret")


async def a_secret_store(path: Path, key: Key | None, messages: int = 3) -> None:
    async with pelton.open(path, key=key) as jet:
        await fill(jet, messages)


async def fill(jet: pelton.Jet, messages: int) -> None:
    stream = await jet.create_stream("stream-secret", subjects=["s.>"])
    consumer = await stream.create_consumer(durable_name="consumer-secret")
    for n in range(messages):
        await jet.publish(
            f"s.subject-secret.{n}", b"payload-secret" * 90, headers={"A": "header-secret"}, msg_id=f"id-secret-{n}"
        )
    await consumer.fetch(1, timeout=1)


def told_on_disk(folder: Path) -> list[tuple[str, bytes]]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [(file.name, secret) for file in files for secret in _SECRETS if secret in file.read_bytes()]


async def seen(path: Path, key: Key | None) -> int:
    async with pelton.open(path, key=key) as jet:
        return (await (await jet.stream("stream-secret")).info()).state.messages


async def refused(path: Path, key: Key | None) -> str:
    before = path.read_bytes()
    with pytest.raises(pelton.StoreKeyError) as caught:
        await pelton.open(path, key=key)
    assert path.read_bytes() == before
    assert "key" not in str(key) or str(key) not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["text", "bytes", "file", "function"])
async def test_a_key_may_be_given_in_four_ways(tmp_path: Path, kind: str) -> None:
    (tmp_path / "key").write_bytes(b"the key\n")
    keys = {
        "text": "the key",
        "bytes": b"the key",
        "file": pelton.KeyFile(tmp_path / "key"),
        "function": lambda: "the key",
    }
    await a_secret_store(tmp_path / "a.pelton", "the key")
    assert await seen(tmp_path / "a.pelton", keys[kind]) == 3
    assert recount(str(tmp_path / "a.pelton"), b"the key") == []


async def test_who_has_no_key_or_another_one_is_told_and_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_secret_store(path, "key-1")
    assert "it is encrypted: give its key" in await refused(path, None)
    assert "another key" in await refused(path, "key-2")
    await a_secret_store(tmp_path / "plain.pelton", None)
    assert "not encrypted" in await refused(tmp_path / "plain.pelton", "key-1")
    assert await seen(path, "key-1") == 3


async def test_a_wrong_key_costs_nothing_of_what_a_crash_has_left_in_the_log(tmp_path: Path) -> None:
    path, left = tmp_path / "a.pelton", tmp_path / "left.pelton"
    async with pelton.open(path, key="key-1") as jet:
        await fill(jet, 5)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
    log = Path(f"{left}-wal").read_bytes()
    for key in (None, "key-2"):
        await refused(left, key)
        assert Path(f"{left}-wal").read_bytes() == log
    assert await seen(left, "key-1") == 5


async def test_a_file_of_something_else_is_no_store_with_a_key_either(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"some text that is no database " * 100)
    for key in (None, "key"):
        with pytest.raises(pelton.NotAStoreError):
            await pelton.open(tmp_path / "a", key=key)


@pytest.mark.parametrize("key", ["", b"", 7, lambda: ""])
async def test_a_key_that_is_none_is_refused(tmp_path: Path, key: Key) -> None:
    with pytest.raises(pelton.ConfigError, match="key is"):
        await pelton.open(tmp_path / "a.pelton", key=key)


async def test_a_key_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(pelton.ConfigError, match="nowhere"):
        await pelton.open(tmp_path / "a.pelton", key=pelton.KeyFile(tmp_path / "nowhere"))


async def test_what_ends_with_the_process_takes_no_key() -> None:
    with pytest.raises(pelton.ConfigError, match="leave key= out"):
        await pelton.open("memory:", key="key")


# --- on the disk


async def test_nothing_readable_is_on_the_disk_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="key") as jet:
        await fill(jet, 40)
        assert {"a.pelton", "a.pelton-wal", "a.pelton-shm"} <= {file.name for file in tmp_path.iterdir()}
        assert told_on_disk(tmp_path) == []
        await jet.rekey("key-2")
        assert told_on_disk(tmp_path) == []
    assert told_on_disk(tmp_path) == []
    pelton.compact(path, "key-2")
    assert told_on_disk(tmp_path) == []
    await a_secret_store(tmp_path / "plain.pelton", None)
    assert len(told_on_disk(tmp_path)) == len(_SECRETS), "the test sees what is readable"


async def _publisher(pipe: Connection, path: Path) -> None:
    async with pelton.open(path, key="key") as jet:
        await fill(jet, 40)
        pipe.send("stored")
        while True:
            await jet.publish("s.subject-secret.0", b"payload-secret" * 2000, headers={"A": "header-secret"})


async def test_nothing_readable_is_left_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    for _ in range(3):
        with Child(_publisher, path) as child:
            assert await child.heard() == "stored"
            child.kill()
        assert told_on_disk(tmp_path) == []
    assert await seen(path, "key") >= 40
    assert recount(str(path), b"key") == []


# --- changing keys


async def test_a_key_changes_while_the_store_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="old") as jet:
        await fill(jet, 3)
        await asyncio.gather(*[jet.publish("s.more", b"%d" % n) for n in range(20)], jet.rekey("new"))
        await jet.publish("s.after", b"after")
        clone = jet.backend.clone()
        await clone.publish("s.clone", b"it has the new key")
        await clone.close()
    assert "another key" in await refused(path, "old")
    assert await seen(path, "new") == 25
    assert recount(str(path), b"new") == []


async def _user(pipe: Connection, path: Path) -> None:
    async with pelton.open(path, key="old") as jet:
        await jet.publish("s.child", b"with the old key")
        pipe.send("stored")
        pipe.recv()
        for attempt in (lambda: jet.publish("s.child", b"too late"), lambda: last_seq(jet)):
            with pytest.raises(pelton.StoreError) as caught:
                await attempt()
            pipe.send(type(caught.value).__name__)
    async with pelton.open(path, key="new") as jet:
        pipe.send((await jet.publish("s.child", b"with the new key")).seq)


async def test_another_process_is_told_of_a_new_key_and_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="old") as jet:
        await fill(jet, 3)
        with Child(_user, path) as child:
            assert await child.heard() == "stored"
            await jet.rekey("new")
            child.say("go on")
            assert [await child.heard() for _ in range(3)] == ["StoreKeyError", "StoreKeyError", 5]
        await jet.publish("s.mine", b"still at work")
    assert recount(str(path), b"new") == []


async def test_a_plain_store_is_not_encrypted_under_way(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        with pytest.raises(pelton.StoreSettingsError, match=r"close it and use pelton\.rekey"):
            await jet.rekey("key")
        await jet.create_stream("s")


async def test_a_store_is_encrypted_rekeyed_and_decrypted_while_nobody_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_secret_store(path, None, 40)
    path.chmod(0o600)
    for before, after in ((None, "one"), ("one", "two"), ("two", None)):
        pelton.rekey(path, before, after)
        assert bool(told_on_disk(tmp_path)) == (after is None)
        assert await seen(path, after) == 40
        assert recount(str(path), after.encode() if after else None) == []
        assert path.stat().st_mode & 0o777 == 0o600
        assert [file.name for file in tmp_path.iterdir()] == ["a.pelton"]


async def test_a_store_in_use_is_not_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await fill(jet, 3)
        with pytest.raises(pelton.StoreBusyError, match="it is open; close it everywhere"):
            pelton.rekey(path, None, "key")
        await jet.publish("s.more", b"unharmed")
    assert await seen(path, None) == 4


async def test_a_copy_left_behind_by_a_crash_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_secret_store(path, None)
    (tmp_path / "a.pelton-rebuilt").write_bytes(b"half of a copy")
    pelton.rekey(path, None, "key")
    assert await seen(path, "key") == 3


async def test_a_missing_store_is_not_made_by_rekeying_it(tmp_path: Path) -> None:
    with pytest.raises(pelton.StoreSettingsError, match="no such file"):
        pelton.rekey(tmp_path / "a.pelton", None, "key")
    assert list(tmp_path.iterdir()) == []


def test_without_await(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    with pelton.sync.open(path, key="one") as jet:
        jet.create_stream("s")
        jet.publish("s", b"1")
        jet.rekey("two")
        jet.publish("s", b"2")
    with pytest.raises(pelton.StoreKeyError):
        pelton.sync.open(path, key="one")
    with pelton.sync.open(path, key="two") as jet:
        assert jet.stream("s").info().state.messages == 2
