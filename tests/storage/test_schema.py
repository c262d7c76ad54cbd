"""Upgrading an older store to the newest schema: once, atomically, whichever process comes first."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import pelton
from pelton.api import StoreVersionError
from pelton.engine.salvage import recount
from pelton.storage import SCHEMA_VERSION, Database, Fault, schema
from pelton.storage import database as database_module
from tests.storage.stores import a_store, last_seq, raw, undo_version_5


def next_version(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Pretend that this is the next release, whose schema needs ``script``."""
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, script))
    for module in (schema, database_module):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)


def test_every_version_has_its_script() -> None:
    assert len(schema.MIGRATIONS) == SCHEMA_VERSION


async def test_an_older_store_is_carried_to_the_newest_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    next_version(monkeypatch, "CREATE TABLE later(a); INSERT INTO later SELECT count(*) FROM streams;")
    for _ in range(2):
        database = Database(str(path))
        assert database.value("PRAGMA user_version") == SCHEMA_VERSION + 1
        assert database.value("SELECT sum(a) FROM later") == 1
        database.close()
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 3
        await jet.publish("s.new")
    assert recount(str(path)) == []


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    with monkeypatch.context() as patched:
        next_version(patched, "CREATE TABLE later(a); INSERT INTO missing VALUES(1);")
        with pytest.raises(Fault):
            Database(str(path))
    async with pelton.open(path) as jet:
        assert await last_seq(jet) == 3
    database = Database(str(path))
    assert database.value("SELECT count(*) FROM sqlite_schema WHERE name='later'") == 0
    database.close()


async def test_an_older_pelton_that_has_the_store_open_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as older:
        await older.publish("s.1")
        with monkeypatch.context() as patched:
            next_version(patched, "CREATE TABLE later(a);")
            Database(str(path)).close()
        for call in (older.publish("s.1"), older.stream("s"), older.publish("s.1")):
            with pytest.raises(StoreVersionError):
                await call


async def test_subscriptions_of_an_older_store_get_their_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pelton"
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        for module in (schema, database_module):
            patched.setattr(module, "SCHEMA_VERSION", 2)
        older = Database(str(path))
        older.execute("INSERT INTO listeners(owner, subject, grp) VALUES('gone', 's.>', '')")
        older.execute("INSERT INTO told VALUES(7, 'x', 1, 's.1', 's.1', '', NULL, 'data', 7)")
        older.close()
    newer = Database(str(path))
    assert newer.value("SELECT subject FROM pubsub_subscriptions") == "s.>"
    assert newer.execute("SELECT seq, subscription, data FROM pubsub_outbox").fetchall() == [(7, 1, "data")]
    # Rows of the outbox are never renumbered: readers remember how far they have read.
    assert newer.value("SELECT seq FROM sqlite_sequence WHERE name='pubsub_outbox'") == 7
    assert newer.value("SELECT count(*) FROM meta WHERE key='subscriptions'") == 1
    newer.close()
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        async with await jet.subscribe("s.>") as subscription:
            await jet.publish("s.1", b"x")
            message = await subscription.next(timeout=60)
            assert message is not None
            assert message.data == b"x"
    assert recount(str(path)) == []


async def test_the_subjects_of_an_older_store_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"], max_msgs_per_subject=9)
        await jet.publish_batch([("s.1", b"1"), ("s.2", b"2"), ("s.1", b"3")])
    with raw(path) as connection:
        undo_version_5(connection)
        connection.execute("ALTER TABLE stream_state DROP subjects_upto")
        connection.execute("PRAGMA user_version=3")
    async with pelton.open(path) as jet:
        await jet.publish("s.1", b"4")
        stream = await jet.stream("s")
        assert (await stream.info(subjects_filter=">")).state.subjects == {"s.1": 3, "s.2": 1}
    assert recount(str(path)) == []


async def test_the_keys_of_an_older_store_get_their_turns(tmp_path: Path) -> None:
    """A store that version 4 has made: of the keys a and b one job has ended, the next of a is ready."""
    path = tmp_path / "a.pelton"
    connection = apsw.Connection(str(path))
    connection.execute(Path(__file__).with_name("schema4.sql").read_text())
    connection.close()
    async with pelton.open(path) as jet:
        queue = await jet.queue("q", exclusive=True)

        @queue.job
        async def paint(n: int) -> None: ...

        await paint.options(key="d", priority=3).enqueue(8)
        found: list[tuple[str, bytes]] = []
        async with queue.claims() as claims:
            while jobs := await claims.take(1):
                found.append((jobs[0].key, jobs[0].args))
                jobs[0].complete()
                assert await claims.settle(jobs) == []
    assert [(key, int(args[5:-1])) for key, args in found] == [
        ("d", 8), ("a", 1), ("b", 5), ("c", 7), ("a", 2), ("b", 6), ("a", 3)
    ]  # fmt: skip
    assert recount(str(path)) == []


async def test_a_table_of_the_users_with_a_name_that_a_new_version_needs_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, jet.transaction() as tx:
        await tx.sql("CREATE TABLE parcels(a)")
        await tx.sql("INSERT INTO parcels VALUES(1)")
    with monkeypatch.context() as patched:
        next_version(patched, "CREATE TABLE parcels(b);")
        with pytest.raises(pelton.StoreSettingsError, match=r"your own table 'parcels'.*ALTER TABLE"):
            await pelton.open(path)
    async with pelton.open(path) as jet, jet.transaction() as tx:
        assert await tx.sql("SELECT a FROM parcels") == [(1,)]
