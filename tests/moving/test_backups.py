"""ContinuousBackup that continue: each point is there or not, whole, and what the store was at its moment."""

from __future__ import annotations

import asyncio
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

import pelton
from pelton.api import ConfigError, StoreBusyError, StoreError, StoreFullError, StoreKeyError
from pelton.cli.main import main
from pelton.moving import BackupPoint, ContinuousBackup
from pelton.moving.continuous_backup import AddressTarget, BackupTarget, FolderTarget, _changed_pages
from pelton.runtime import Runtime
from pelton.storage import SCHEMA_VERSION, ReadOnlyDatabase, integers
from pelton.storage.pages import page_snapshot
from pelton.testing import manual_runtime
from tests.storage.stores import a_store, raw
from tests.stores.write import HERE

_HOUR = 3600.0


class KilledHere(BaseException):
    """Where a process would have been killed."""


class MortalTarget:
    """A target at whose n-th change whoever makes it is killed, with half of a file written or before."""

    def __init__(self, target: BackupTarget, changes: int = 1 << 30, *, halves: bool = False) -> None:
        self._target = target
        self.address = target.address
        self.left = changes
        self._halves = halves
        self.lock = target.lock
        self.names: Callable[[], list[str]] = target.names

    def read(self, names: Sequence[str], size: int | None = None) -> dict[str, bytes]:
        return self._target.read(names, size)

    def write(self, name: str, data: bytes) -> None:
        self._live(lambda: self._target.write(name, data[: len(data) // 2]))
        self._target.write(name, data)

    def remove(self, name: str) -> None:
        self._live(lambda: None)
        self._target.remove(name)

    def _live(self, dying: Callable[[], None]) -> None:
        self.left -= 1
        if self.left < 0:
            if self._halves:
                dying()
            raise KilledHere


def rows_of(path: Path, key: str | None = None) -> dict[str, object]:
    """Return all that a store tells: messages, streams, consumers with their deliveries."""
    secret = None if key is None else key.encode()
    with closing(ReadOnlyDatabase(os.fspath(path), key=secret)) as store:
        tables = [name for (name,) in store.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
        asked = [str(name) for name in tables if str(name)[:2] == "m_"] + ["streams", "pelton_deliveries"]
        return {name: store.execute(f"SELECT * FROM {name}").fetchall() for name in asked}


async def change(path: Path, number: int, key: str | None = None) -> None:
    """Change a store: messages are added, delivered, acknowledged and removed."""
    async with pelton.open(path, key=key) as jet:
        await jet.publish_batch([(f"s.{n}", b"%d" % (number * 100 + n) * 9) for n in range(40)])
        stream = await jet.stream("s")
        consumer = await stream.create_consumer(durable_name="worker")
        for message in (await consumer.fetch(20))[number % 2 :: 2]:
            await message.ack()
        await stream.purge(seq=number * 20)


@pytest.fixture(params=["folder", "memory", "fsspec"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> BackupTarget:
    if request.param == "folder":
        return FolderTarget(os.fspath(tmp_path / "backup"))
    address = f"memory://{tmp_path}" if request.param == "memory" else f"file://{tmp_path}/backup"
    return AddressTarget(address, lambda seconds: None)


async def test_each_point_is_the_store_of_its_moment(tmp_path: Path, target: BackupTarget) -> None:
    store, runtime = tmp_path / "a.pelton", manual_runtime()
    await a_store(store)
    made: list[tuple[BackupPoint, dict[str, object]]] = []
    backups = ContinuousBackup(target, runtime=runtime)
    for number in range(8):
        runtime.clock.advance(60)
        await change(store, number)
        # Every other one by a process that knows nothing.
        if number % 2:
            backups = ContinuousBackup(target, runtime=runtime)
        point = backups.add(store)
        pelton.backup(store, tmp_path / f"plain-{number}.pelton")
        made.append((point, rows_of(tmp_path / f"plain-{number}.pelton")))
    points = ContinuousBackup(target).points()
    assert points == [point for point, _ in made]
    assert len({point.parent for point in points}) > 3
    for number, (point, plain) in enumerate(made):
        again = tmp_path / f"again-{number}.pelton"
        assert ContinuousBackup(target).restore(again, at_ns=point.time_ns + 59 * 10**9) == point
        assert rows_of(again) == plain
    with pytest.raises(ConfigError, match="no point is so old"):
        ContinuousBackup(target).restore(tmp_path / "never.pelton", at_ns=points[0].time_ns - 1)


async def test_a_point_is_the_moment_at_which_it_began(tmp_path: Path) -> None:
    store = tmp_path / "a.pelton"
    await a_store(store)
    async with pelton.open(store) as jet:
        for folded in (False, True):
            if folded:
                # All of the log is in the file, so it may begin anew in the middle of a point.
                with raw(store) as connection:
                    connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
            with page_snapshot(os.fspath(store), None) as snapshot:
                before = snapshot.digests()
                await jet.publish_batch([("s.x", bytes(1000))] * 200)
                with raw(store) as connection:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                await jet.publish_batch([("s.x", bytes(1000))] * 200)
                assert snapshot.digests() == before
                assert len(before) == snapshot.count * 16


async def _killed(tmp_path: Path, target: BackupTarget, *, keep: float | None, halves: bool) -> int:
    """Kill an addition at each of its changes in turn; return how many there were."""
    store, runtime = tmp_path / "a.pelton", manual_runtime()
    await a_store(store)
    kills = 0
    for number in range(7 if keep else 0):
        runtime.clock.advance(60)
        await change(store, number)
        ContinuousBackup(target, runtime=runtime).add(store)
    kept = ContinuousBackup(target).points()
    is_done = False
    while not is_done:
        runtime.clock.advance(60)
        await change(store, len(kept))
        mortal = MortalTarget(target, kills, halves=halves)
        try:
            ContinuousBackup(mortal, runtime=runtime).add(store, keep=keep)
            is_done = True
        except KilledHere:
            kills += 1
        points = ContinuousBackup(target).points()
        assert len(points) - len([one for one in points if one.name in {old.name for old in kept}]) <= 1
        kept = points
        for number, point in enumerate(points[-2:]):
            again = tmp_path / f"{kills}-{number}-{is_done}.pelton"
            assert ContinuousBackup(target).restore(again, at_ns=point.time_ns) == point
            again.unlink()
        runtime.clock.advance(60)
        await change(store, len(kept))
        # What was left does not keep the next one from its work, and goes with it.
        ContinuousBackup(target, runtime=runtime).add(store)
        kept = ContinuousBackup(target).points()
    # Those of points that go with the next one, too.
    ContinuousBackup(target, runtime=runtime).add(store)
    kept = ContinuousBackup(target).points()
    named = {part.name for point in kept for part in point.parts}
    assert {name for name in target.names() if name.startswith("pages/")} == named
    return kills


@pytest.mark.parametrize("halves", [False, True])
async def test_killed_at_each_change(tmp_path: Path, halves: bool) -> None:
    target = FolderTarget(os.fspath(tmp_path / "backup"))
    assert await _killed(tmp_path, target, keep=None, halves=halves) >= 2


@pytest.mark.parametrize("halves", [False, True])
async def test_killed_at_each_change_while_old_points_go(tmp_path: Path, halves: bool) -> None:
    target = FolderTarget(os.fspath(tmp_path / "backup"))
    assert await _killed(tmp_path, target, keep=200, halves=halves) >= 6


async def test_old_points_go_and_all_others_can_be_restored(tmp_path: Path, target: BackupTarget) -> None:
    store, runtime = tmp_path / "a.pelton", manual_runtime()
    await a_store(store)
    backups, plain = ContinuousBackup(target, runtime=runtime), {}
    for number in range(14):
        runtime.clock.advance(_HOUR)
        await change(store, number)
        point = backups.add(store, keep=4 * _HOUR)
        plain[point.name] = rows_of(store)
        points = ContinuousBackup(target).points()
        begin = point.time_ns - 4 * _HOUR * 1e9
        assert [one for one in points if one.time_ns > begin] == points[-4:]
        # Of the moment at which the time begins, too.
        assert number < 4 or any(one.time_ns <= begin for one in points)
        assert len(points) <= 8
    for point in points:
        ContinuousBackup(target).restore(tmp_path / f"{point.name}.pelton", at_ns=point.time_ns)
        assert rows_of(tmp_path / f"{point.name}.pelton") == plain[point.name]


async def test_a_clock_that_was_set_back_keeps_the_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, runtime = tmp_path / "a.pelton", manual_runtime()
    await a_store(store)
    backups = ContinuousBackup(tmp_path / "backup", runtime=runtime)
    first = backups.add(store)
    runtime.clock.set_wall(runtime.clock.now() - 10**15)
    second = backups.add(store, keep=1)
    assert second.time_ns > first.time_ns
    assert [record.getMessage() for record in caplog.records if "was it set back?" in record.getMessage()]
    # One that was set forward takes nothing away, either.
    runtime.clock.set_wall(runtime.clock.now() + 10**18)
    backups.add(store, keep=1)
    assert len(backups.points()) == 3


async def test_nothing_is_written_where_something_else_is(tmp_path: Path) -> None:
    store, other = tmp_path / "a.pelton", tmp_path / "b.pelton"
    await a_store(store)
    await a_store(other)
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"miaow")
    with pytest.raises(ConfigError, match="it holds something else"):
        ContinuousBackup(folder).add(store)
    assert [one.name for one in folder.iterdir()] == ["cat.jpg"]
    ContinuousBackup(tmp_path / "backup").add(store)
    with pytest.raises(ConfigError, match="the backup of another store"):
        ContinuousBackup(tmp_path / "backup").add(other)
    with pytest.raises(StoreError, match="the target of the backup cannot be used"):
        ContinuousBackup(folder / "cat.jpg").add(store)
    with pytest.raises(ConfigError, match="there is no point"):
        ContinuousBackup(tmp_path / "nowhere").restore(tmp_path / "c.pelton")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
async def test_a_full_disk_keeps_the_points_that_are_there(tmp_path: Path) -> None:
    store, folder = tmp_path / "a.pelton", tmp_path / "backup"
    await a_store(store)
    folder.mkdir()
    # What was killed has left this, and it goes.
    (folder / "pelton-backup.json.new").symlink_to("/dev/full")
    with pytest.raises(StoreFullError):
        FolderTarget(os.fspath(folder)).write("pelton-backup.json", b"{}")
    assert ContinuousBackup(folder).points() == []
    ContinuousBackup(folder).add(store)
    assert len(ContinuousBackup(folder).points()) == 1


async def test_a_damaged_store_is_reported_and_makes_no_point(tmp_path: Path) -> None:
    store, backups = tmp_path / "a.pelton", ContinuousBackup(tmp_path / "backup")
    await a_store(store, 30)
    backups.add(store)
    for damage in ("data=x'00'", "subject=CAST(x'ff' AS TEXT)", "hdr='text'"):
        with raw(store) as connection:
            connection.execute(f"UPDATE m_1 SET {damage} WHERE seq=7")
        with pytest.raises(StoreError, match="message 7 of table m_1 does not match its checksum"):
            backups.add(store)
    assert len(backups.points()) == 1


async def test_a_flipped_bit_is_found_and_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    store, backups, draw = tmp_path / "a.pelton", ContinuousBackup(tmp_path / "backup"), Random(7)
    await a_store(store, 30)
    async with pelton.open(store) as jet:
        sizes = [draw.choice([1, 300, 3900, 4100, 9000, 40_000]) for _ in range(300)]
        await jet.publish_batch([(f"s.{n}", b"%05d" % n * (1 + size // 5)) for n, size in enumerate(sizes)])
    with page_snapshot(os.fspath(store), None) as snapshot:
        seqs = {seq for table in snapshot._tables() for (seq,) in snapshot._source.execute(f"SELECT seq FROM {table}")}
        assert seqs <= set(snapshot._rows_on(range(1, snapshot.count + 1)) or ())
        before = snapshot.digests()
    backups.add(store)
    sound = store.read_bytes()
    # On a leaf, and on a page of a large payload that belongs to it.
    for size in (300, 40_000):
        data = bytearray(sound)
        data[sound.rindex(b"%05d" % sizes.index(size) * 20) + 60] ^= 1
        store.write_bytes(data)
        with pytest.raises(StoreError, match="does not match its checksum"):
            backups.add(store)
    store.write_bytes(sound)
    async with pelton.open(store) as jet:
        await jet.publish_batch([("s.new", b"x" * size) for size in (10, 30_000)])
    with page_snapshot(os.fspath(store), None) as snapshot:
        rows = snapshot._rows_on(_changed_pages(before, snapshot.digests()))
        assert rows is not None
        assert 331 in rows
        assert len(rows) < 60
    assert backups.add(store).parent


async def test_of_an_encrypted_store_only_changed_rows_are_verified_again(tmp_path: Path) -> None:
    store, backups, draw = tmp_path / "a.pelton", ContinuousBackup(tmp_path / "backup"), Random(7)
    async with pelton.open(store, key="secret") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        sizes = [draw.choice([1, 300, 3900, 4020, 4100, 9000, 40_000]) for _ in range(300)]
        await jet.publish_batch([(f"s.{n}", b"x" * size) for n, size in enumerate(sizes)])
    backups.add(store, key="secret")
    async with pelton.open(store, key="secret") as jet:
        await jet.publish_batch([("s.new", b"x" * size) for size in (10, 30_000)])
        with page_snapshot(os.fspath(store), b"secret") as snapshot:
            assert snapshot._frames
            before = backups._digests_of(backups.points())
            assert set(range(1, 303)) <= set(snapshot._rows_on(range(1, snapshot.count + 1)) or ())
            rows = snapshot._rows_on(_changed_pages(before, snapshot.digests()))
            assert rows is not None
            assert {301, 302} <= set(rows)
            assert len(rows) < 60
    with raw(store, "secret") as connection:
        connection.execute("UPDATE m_1 SET data=zeroblob(length(data)) WHERE seq=302")
    with pytest.raises(StoreError, match="message 302 of table m_1 does not match its checksum"):
        backups.add(store, key="secret")


async def test_a_damaged_part_is_never_restored(tmp_path: Path) -> None:
    store, backups = tmp_path / "a.pelton", ContinuousBackup(tmp_path / "backup")
    await a_store(store, 30)
    first = backups.add(store)
    await change(store, 1)
    second = backups.add(store)
    part = tmp_path / "backup" / second.parts[0].name
    damaged = bytearray(part.read_bytes())
    damaged[-9] ^= 1
    part.write_bytes(damaged)
    with pytest.raises(StoreError, match="does not match its checksum"):
        backups.restore(tmp_path / "b.pelton")
    backups.restore(tmp_path / "b.pelton", at_ns=first.time_ns)
    assert not list(tmp_path.glob("*-unfinished*"))


async def test_an_encrypted_store_stays_encrypted(tmp_path: Path) -> None:
    store, backups = tmp_path / "a.pelton", ContinuousBackup(tmp_path / "backup")
    async with pelton.open(store, key="secret") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await jet.publish("s.1", b"a secret that nobody may read" * 9)
        point = backups.add(store, key="secret")
    await change(store, 1, key="secret")
    backups.add(store, key="secret")
    for part in (tmp_path / "backup" / "pages").iterdir():
        assert b"nobody may read" not in part.read_bytes()
    assert backups.points()[0].messages == point.messages == 1
    with pytest.raises(StoreKeyError):
        backups.add(store)
    with pytest.raises(StoreKeyError):
        backups.restore(tmp_path / "b.pelton", key="another")
    backups.restore(tmp_path / "b.pelton", key="secret")
    assert rows_of(tmp_path / "b.pelton", "secret") == rows_of(store, "secret")


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
async def test_a_point_of_an_older_schema_is_migrated(tmp_path: Path, version: int) -> None:
    store, target = tmp_path / "a.pelton", os.fspath(tmp_path / "backup")
    store.write_bytes(lzma.decompress((HERE / f"schema-{version}.pelton.xz").read_bytes()))
    assert await asyncio.to_thread(main, ["backup", os.fspath(store), target, "--keep", "1h"]) == 0
    [point] = ContinuousBackup(target).points()
    # Since then it was migrated.
    assert await asyncio.to_thread(pelton.migrate, store) == version
    assert ContinuousBackup(target).add(store).parent == point.name
    restored = tmp_path / "b.pelton"
    at = datetime.fromtimestamp(point.time_ns / 1e9 + 1e-3, UTC).isoformat()
    assert await asyncio.to_thread(main, ["restore", target, os.fspath(restored), "--at", at]) == 0
    assert pelton.verify(restored) == []
    with raw(restored) as connection:
        assert connection.execute("PRAGMA user_version").fetchall() == [(SCHEMA_VERSION,)]
    async with pelton.open(restored) as jet:
        orders = await jet.stream("orders")
        state = (await orders.info()).state
        assert (state.messages, state.first_seq, state.last_seq) == (9, 1, 10)
        assert (await (await orders.consumer("ship")).info()).ack_floor.stream_seq == 3


async def test_tokens_of_a_restored_store_are_above_all_that_were_given_later(tmp_path: Path) -> None:
    store, backups = tmp_path / "a.pelton", ContinuousBackup(tmp_path / "backup")
    await a_store(store, 30)

    async def tokens(path: Path) -> list[int]:
        async with pelton.open(path) as jet:
            async with jet.lock("door", ttl=60) as lease:
                found = [lease.token]
            async with jet.elect("chief", ttl=60) as term:
                found.append(term.token)
            consumer = await (await jet.stream("s")).create_consumer(durable_name="worker")
            [message] = await consumer.fetch(1)
            return [*found, message.delivered.token]

    await tokens(store)
    async with pelton.open(store) as jet, jet.lock("gate", ttl=60):
        backups.add(store)
    later = [await tokens(store) for _ in range(3)][-1]
    backups.restore(tmp_path / "b.pelton")
    async with pelton.open(tmp_path / "b.pelton") as jet:
        # Its holder of then may work on for as long as it may count on it.
        with pytest.raises(TimeoutError):
            await jet.lock("gate", ttl=60).acquire(timeout=0.001)
    assert all(new > old for new, old in zip(await tokens(tmp_path / "b.pelton"), later, strict=True))
    assert pelton.verify(tmp_path / "b.pelton") == []


async def test_one_at_a_time(tmp_path: Path) -> None:
    store, folder = tmp_path / "a.pelton", tmp_path / "backup"
    await a_store(store)
    with FolderTarget(os.fspath(folder)).lock(manual_runtime()), pytest.raises(StoreBusyError):
        ContinuousBackup(folder).add(store)
    ContinuousBackup(folder).add(store)


async def test_the_lock_of_one_that_was_killed_is_taken_over_at_an_address(tmp_path: Path) -> None:
    store, runtime = tmp_path / "a.pelton", manual_runtime()
    await a_store(store)
    address = f"memory://{tmp_path}"

    def behind_of(holder: AddressTarget) -> Callable[[float], None]:
        count = 0

        def go_on(seconds: float) -> None:
            nonlocal count
            count += 1
            holder.write("lock", b"another %d" % count)

        return go_on

    first = AddressTarget(address, runtime.clock.advance)
    first.write("lock", b"another 0")
    with pytest.raises(StoreBusyError):
        ContinuousBackup(AddressTarget(address, behind_of(first)), runtime=runtime).add(store)
    ContinuousBackup(first, runtime=runtime).add(store)
    assert "lock" not in first.names()

    # Whoever was too slow notices it before anything of a point is there.
    def take(holder: AddressTarget) -> Runtime:
        with suppress(StoreBusyError), holder.lock(runtime) as renew:
            first.write("lock", b"another 7")
            renew()
            raise AssertionError
        return runtime

    take(AddressTarget(address, runtime.clock.advance))
    assert first.read(["lock"]) == {"lock": b"another 7"}


def test_without_fsspec_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"needs fsspec: pip install 'pelton\[fsspec\]'"):
        ContinuousBackup("s3://bucket/shop")
    assert ContinuousBackup(f"file://{tmp_path}/backup").points() == []


async def test_points_of_two_that_wrote_at_once_can_all_be_restored(tmp_path: Path) -> None:
    store, folder = tmp_path / "a.pelton", tmp_path / "backup"
    await a_store(store)
    first = ContinuousBackup(folder).add(store)
    await change(store, 1)
    one = ContinuousBackup(folder, runtime=manual_runtime(1)).add(store)
    # Another one has written under the same number, as it did not see this one.
    hidden = folder / "points" / f"{one.name}.json"
    kept = hidden.read_bytes()
    hidden.unlink()
    os.rename(folder / one.parts[0].name, tmp_path / "part")
    await change(store, 2)
    other = ContinuousBackup(folder, runtime=manual_runtime(2)).add(store)
    hidden.write_bytes(kept)
    os.rename(tmp_path / "part", folder / one.parts[0].name)
    points = ContinuousBackup(folder).points()
    assert {point.name for point in points} == {first.name, one.name, other.name}
    assert replace(one, id="") != replace(other, id="")
    assert one.number == other.number
    for point in points:
        ContinuousBackup(folder).restore(tmp_path / f"{point.name}.pelton", at_ns=point.time_ns)


_WRITER = """
import asyncio, sys, pelton

async def main(store):
    async with pelton.open(store) as jet:
        number = 0
        while True:
            number += 1
            await jet.publish_batch([("s.x", b"%d" % number * 20)] * 10)
            print(number, flush=True)

asyncio.run(main(sys.argv[1]))
"""


def test_a_hundred_points_under_load_and_kills(tmp_path: Path) -> None:
    store, folder = tmp_path / "a.pelton", tmp_path / "backup"
    asyncio.run(a_store(store))
    words = [sys.executable, "-m", "pelton", "backup", str(store), str(folder), "--every", "0.02s", "--keep", "1h"]
    random = Random(7)
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(store)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        points: list[BackupPoint] = []
        while len(points) < 100:
            with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                for _ in range(random.randrange(1, 16)):
                    process.stdout.readline()
                # Written by then: what is acknowledged before a point is in it.
                writer.stdout.readline()
                process.kill()
            points = ContinuousBackup(folder).points()
        writer.kill()
    last = 0
    for point in points:
        again = tmp_path / f"{point.name}.pelton"
        ContinuousBackup(folder).restore(again, at_ns=point.time_ns)
        with closing(ReadOnlyDatabase(os.fspath(again))) as read:
            found = read.execute("SELECT count(*), min(seq), max(seq) FROM m_1").fetchall()[0]
            count, first, highest = integers(found)
        # A prefix of what was written, in whole batches, and never less than before.
        assert (count, first) == (highest, 1)
        assert (highest - 3) % 10 == 0
        assert highest >= last
        assert count == point.messages - _audited(again)
        last = highest
        again.unlink()
    ContinuousBackup(folder).add(store)
    named = {part.name for point in ContinuousBackup(folder).points() for part in point.parts}
    assert {f"pages/{one.name}" for one in (folder / "pages").iterdir()} == named


def _audited(path: Path) -> int:
    with closing(ReadOnlyDatabase(os.fspath(path))) as read:
        names = [str(name) for (name,) in read.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'm_[0-9]*'")]
        counts = [read.value(f"SELECT count(*) FROM {name}") for name in names if name != "m_1"]
    return sum(int(count) for count in counts)
