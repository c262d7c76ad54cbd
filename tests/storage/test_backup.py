"""Copies of stores in use, and what can be read from a damaged store."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import pelton
from pelton.api import StoreSettingsError
from pelton.engine.salvage import recount
from pelton.storage import Database
from pelton.storage.copies import belonging
from tests.storage.stores import a_store, raw


async def a_rich_store(path: Path, key: str | None = None) -> None:
    async with pelton.open(path, key=key) as jet:
        kept = await jet.create_stream("kept", subjects=["kept.>"], allow_msg_ttl=True)
        await jet.create_stream("other", subjects=["other"])
        work = await jet.create_stream("work", subjects=["work.*"], retention="workqueue", compression="s2")
        await kept.create_consumer(durable_name="c")
        one_each = await work.create_consumer(durable_name="w", max_ack_pending_per_subject=1)
        for n in range(300):
            await jet.publish(f"kept.{n % 7}", b"k%d" % n * 40, msg_id=f"m{n}", ttl=3600)
        await jet.publish_batch([("other", b"o" * 900)] * 50)
        await jet.publish_batch([(f"work.{n % 5}", b"text " * 100) for n in range(100)])
        for message in await one_each.fetch(3, timeout=0):
            await message.ack()
        await one_each.fetch(2, timeout=0)
        await (await kept.consumer("c")).fetch(10, timeout=0)


async def counts(path: Path, key: str | None = None) -> dict[str, int]:
    async with pelton.open(path, key=key) as jet:
        return {name: (await (await jet.stream(name)).info()).state.messages for name in await jet.stream_names()}


@pytest.mark.parametrize("mode", ["PASSIVE", "RESTART", "TRUNCATE"])
@pytest.mark.parametrize("key", [None, "secret"])
async def test_a_copy_is_of_one_moment_while_work_goes_on(tmp_path: Path, key: str | None, mode: str) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_rich_store(path, key)
    heard: list[tuple[int, int]] = []
    async with pelton.open(path, key=key) as jet:

        async def publish() -> None:
            for number in range(200):
                await jet.publish("kept.x", b"meanwhile" * 50)
                if number % 20 == 0:
                    jet.backend.session.db.execute(f"PRAGMA wal_checkpoint({mode})")

        await asyncio.gather(publish(), jet.backup(copy, progress=lambda *so_far: heard.append(so_far)))
        assert heard[-1][0] == heard[-1][1] > 0
    bytes_of = copy.read_bytes()
    assert (b"meanwhile" in bytes_of or b"text" in bytes_of) == (key is None)
    assert recount(str(copy), key.encode() if key else None) == []
    found = await counts(copy, key)
    assert 300 <= found["kept"] <= 500
    assert (found["other"], found["work"]) == (50, 97)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.pelton", "b.pelton"]


async def test_a_copy_of_one_stream_has_its_consumers_and_nothing_else(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_rich_store(path)
    heard: list[tuple[int, int]] = []
    async with pelton.open(path) as jet:
        await jet.backup(copy, streams=["work"], progress=lambda *so_far: heard.append(so_far))
    assert heard[-1][0] == heard[-1][1]
    assert recount(str(copy)) == []
    assert await counts(copy) == {"work": 97}
    async with pelton.open(path) as jet, pelton.open(copy) as again:
        ours = await (await (await jet.stream("work")).consumer("w")).info()
        theirs = await (await (await again.stream("work")).consumer("w")).info()
        assert (theirs.num_pending, theirs.num_ack_pending) == (ours.num_pending, ours.num_ack_pending)
        await again.create_stream("new")
        await again.publish("work.new", b"1")


async def test_every_table_of_the_schema_belongs_to_streams_or_to_the_moment(tmp_path: Path) -> None:
    await a_store(tmp_path / "a.pelton")
    database = Database(str(tmp_path / "a.pelton"))
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    strays = [table for table in tables if belonging(database, table, [1]) is None and not table.startswith("sqlite_")]
    database.close()
    assert sorted(strays) == ["meta", "openers", "pubsub_outbox", "pubsub_subscriptions"]


async def test_what_cannot_be_copied_is_told(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_store(path)
    copy.write_bytes(b"mine")
    async with pelton.open(path) as jet:
        with pytest.raises(pelton.StoreSettingsError, match="exists already"):
            await jet.backup(copy)
        with pytest.raises(pelton.StreamNotFoundError):
            await jet.backup(tmp_path / "c.pelton", streams=["nope"])
    assert copy.read_bytes() == b"mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.pelton", "b.pelton"]
    async with pelton.open("memory:") as jet:
        with pytest.raises(pelton.ConfigError, match="no file to back up"):
            await jet.backup(tmp_path / "c.pelton")


async def test_compacting_gives_back_the_room_of_what_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_rich_store(path)
    async with pelton.open(path) as jet:
        await (await jet.stream("other")).purge()
        with pytest.raises(pelton.StoreBusyError):
            pelton.compact(path)
    assert pelton.compact(path) > 10 * 4096
    assert recount(str(path)) == []
    assert await counts(path) == {"kept": 300, "other": 0, "work": 97}


# --- damage


@pytest.mark.parametrize("seed", range(12))
async def test_flipped_bits_anywhere_are_found_and_the_rest_is_saved(tmp_path: Path, seed: int) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    key = "secret" if seed % 4 == 3 else None
    await a_rich_store(path, key)
    chance = random.Random(seed)
    with raw(path, key) as connection:
        pages = connection.execute("SELECT pageno FROM dbstat WHERE name<>'sqlite_schema' AND pageno>1").fetchall()
    damaged = bytearray(path.read_bytes())
    for _ in range(3):
        # Without the pages that hold the schema, SQLite can read nothing.
        [page] = chance.choice(pages)
        damaged[(page - 1) * 4096 + chance.randrange(4096)] ^= 1 << chance.randrange(8)
    path.write_bytes(damaged)
    found = pelton.verify(path, key)
    lost = pelton.salvage(path, saved, key)
    assert pelton.verify(saved, key) == []
    total = sum((await counts(saved, key)).values())
    assert total > 447 * 0.6
    if total < 447:
        assert found
        assert lost


async def test_a_sound_store_is_salvaged_whole(tmp_path: Path) -> None:
    path, saved = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_rich_store(path)
    assert pelton.verify(path) == []
    assert pelton.salvage(path, saved) == []
    assert await counts(saved) == {"kept": 300, "other": 50, "work": 97}
    async with pelton.open(saved) as jet:
        assert (await (await (await jet.stream("kept")).consumer("c")).info()).num_ack_pending == 10


async def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_rich_store(path)
    pelton.backup(path, copy)
    pelton.restore(copy, tmp_path / "c.pelton")
    assert await counts(tmp_path / "c.pelton") == {"kept": 300, "other": 50, "work": 97}
    damaged = bytearray(copy.read_bytes())
    damaged[damaged.index(b"ooooo") + 2] ^= 1
    copy.write_bytes(damaged)
    with pytest.raises(pelton.StoreError, match=r"pelton\.salvage"):
        pelton.restore(copy, tmp_path / "d.pelton")
    assert not (tmp_path / "d.pelton").exists()


# --- the name that a copy has until it is whole


async def test_two_copies_to_one_target_do_not_mix(tmp_path: Path) -> None:
    path, target = tmp_path / "a.pelton", tmp_path / "copy"
    await a_store(path, 500)
    refused: list[str] = []

    def again(done: int, total: int) -> None:
        try:
            pelton.backup(path, target)
        except pelton.StoreBusyError as error:
            refused.append(str(error))

    await asyncio.to_thread(pelton.backup, path, target, progress=again)
    assert "another copy" in refused[0]
    assert recount(str(target)) == []
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "copy"]


async def test_what_a_killed_copy_left_is_written_over(tmp_path: Path) -> None:
    path, target = tmp_path / "a.pelton", tmp_path / "copy"
    await a_store(path)
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{target}-unfinished{suffix}").write_bytes(b"left behind" * 1000)
    pelton.backup(path, target)
    assert recount(str(target)) == []
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "copy"]


@pytest.mark.parametrize("kind", ["link", "hard link", "folder"])
@pytest.mark.parametrize("copy", [pelton.backup, pelton.salvage])
async def test_what_is_in_the_way_of_a_copy_is_left_alone(
    tmp_path: Path, copy: Callable[[Path, Path], object], kind: str
) -> None:
    path, target, precious = tmp_path / "a.pelton", tmp_path / "copy", tmp_path / "precious"
    await a_store(path)
    precious.write_text("precious")
    unfinished = Path(f"{target}-unfinished")
    match kind:
        case "link":
            unfinished.symlink_to(precious)
        case "hard link":
            os.link(precious, unfinished)
        case _:
            unfinished.mkdir()
    with pytest.raises(StoreSettingsError) as caught:
        copy(path, target)
    assert str(unfinished) in str(caught.value)
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "copy-unfinished", "precious"]


async def test_a_link_to_nothing_is_a_target_that_exists(tmp_path: Path) -> None:
    path, target = tmp_path / "a.pelton", tmp_path / "copy"
    await a_store(path)
    target.symlink_to(tmp_path / "nothing")
    with pytest.raises(StoreSettingsError, match="exists already"):
        pelton.backup(path, target)
    assert target.is_symlink()


async def test_a_target_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path, target = tmp_path / "a.pelton", tmp_path / "copy"
    await a_store(path)
    with pytest.raises(StoreSettingsError, match="exists already"):
        pelton.backup(path, target, progress=lambda *_: target.write_text("precious"))
    assert target.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "copy"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_root_compacts_a_store_for_its_user(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    os.chown(path, 12345, 12346)
    pelton.compact(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 12346, 0o600)


async def test_tables_of_the_users_own_stay_out_of_copies_of_streams(tmp_path: Path) -> None:
    path, whole, streams, other = (tmp_path / f"{name}.pelton" for name in "abcd")
    await a_store(path)
    async with pelton.open(path) as jet:
        async with jet.transaction() as tx:
            # Names and columns that Pelton's own tables have, or nearly.
            await tx.sql("CREATE TABLE m_other(a)")
            await tx.sql("CREATE TABLE notes(stream INTEGER, consumer INTEGER, text)")
            await tx.sql("INSERT INTO notes VALUES(1, 1, 'mine')")
        await jet.backup(whole)
        await jet.backup(streams, streams=["s"])
    async with pelton.open(whole) as copy, copy.transaction() as tx:
        assert await tx.sql("SELECT text FROM notes") == [("mine",)]
    async with pelton.open(other) as there:
        for backup in (whole, streams):
            await there.restore(backup, streams=["s"])
            assert (await (await there.stream("s")).info()).state.messages == 3
            await there.delete_stream("s")
        async with there.transaction() as tx:
            assert await tx.sql("SELECT name FROM sqlite_schema WHERE name IN ('notes', 'm_other')") == []
    assert recount(str(streams)) == []
