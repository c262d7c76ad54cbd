"""What a user's own SQL may and may not do on a store's connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pelton.storage import Database, Refusal, UserSql, message_table
from pelton.storage.schema import is_reserved


class Late:
    def __init__(self) -> None:
        self.is_late = False

    def __call__(self) -> bool:
        return self.is_late


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(str(tmp_path / "a.pelton"))
    database.execute(message_table(7))
    database.execute("INSERT INTO streams VALUES(7, 's', '{}', 0)")
    yield database
    database.close()


@pytest.fixture
def sql(database: Database) -> Iterator[UserSql]:
    sql = UserSql(database, Late())
    database.execute("BEGIN IMMEDIATE")
    sql.run("CREATE TABLE mine(id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT)", ())
    yield sql
    database.execute("ROLLBACK")


ALLOWED = [
    "INSERT INTO mine(what) VALUES('a') ON CONFLICT DO UPDATE SET what='b' RETURNING *",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<9) INSERT INTO mine(what) SELECT i FROM n",
    "CREATE TABLE other AS SELECT * FROM mine; CREATE UNIQUE INDEX by_what ON other(what); DROP TABLE other",
    "CREATE VIEW seen AS SELECT name FROM streams; SELECT * FROM seen; DROP VIEW seen",
    "CREATE TRIGGER t AFTER INSERT ON mine BEGIN UPDATE mine SET what='t'; END; INSERT INTO mine(what) VALUES('b')",
    "ALTER TABLE mine ADD COLUMN more; ALTER TABLE mine DROP COLUMN more; ALTER TABLE mine RENAME TO yours",
    "CREATE TEMP TABLE scratch(x); INSERT INTO scratch VALUES(1); DROP TABLE scratch",
    "CREATE VIRTUAL TABLE texts USING fts5(body); INSERT INTO texts VALUES('hello'); DROP TABLE texts",
    "CREATE TABLE m_tools(x); CREATE TABLE m_7a(x); CREATE TABLE streams2(x)",
    "SELECT * FROM pragma_table_info('mine'); PRAGMA index_list(mine); PRAGMA foreign_key_check(mine)",
    "SELECT count(*) FROM m_7, pending, sqlite_schema, sqlite_sequence; EXPLAIN SELECT 1; DROP TABLE mine",
    "-- nothing",
]
FORBIDDEN = [
    "INSERT INTO m_7 VALUES(1, 1, 's', NULL, x'', 0)",
    "insert into \"M_7\" values(1, 1, 's', null, x'', 0)",
    "UPDATE main.Streams SET name='t'",
    "DELETE FROM pending",
    "DELETE FROM pelton_deliveries",
    "UPDATE stream_state SET last=0",
    "REPLACE INTO meta VALUES('token_floor', 0)",
    "WITH gone AS (SELECT 1) DELETE FROM subjects",
    "DROP TABLE m_7",
    "ALTER TABLE streams RENAME TO s",
    "ALTER TABLE streams ADD COLUMN x",
    "ALTER TABLE mine RENAME TO m_9",
    "CREATE TABLE m_8(x)",
    "CREATE TABLE M_123456(x)",
    "CREATE VIEW m_8 AS SELECT 1",
    "CREATE TEMP TABLE pending(x)",
    "CREATE TEMP VIEW streams AS SELECT 1",
    "CREATE TEMP TABLE x(y); ALTER TABLE temp.x RENAME TO pending",
    "CREATE VIRTUAL TABLE m_8 USING fts5(body)",
    "CREATE INDEX slow ON m_7(subject)",
    "CREATE TRIGGER t AFTER INSERT ON m_7 BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER t AFTER INSERT ON m_7 BEGIN SELECT 1; END",
    "CREATE TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM streams; END; INSERT INTO mine(what) VALUES('a')",
    "DELETE FROM sqlite_sequence",
    "UPDATE sqlite_sequence SET seq=0",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT x",
    "RELEASE user",
    "ROLLBACK TO user",
    "END",
    "INSERT INTO mine(what) VALUES('a'); COMMIT",
    "PRAGMA user_version=9",
    "PRAGMA writable_schema=1",
    "PRAGMA foreign_keys=0",
    "PRAGMA journal_mode=DELETE",
    "PRAGMA wal_checkpoint",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "ANALYZE",
]


@pytest.mark.parametrize("statement", ALLOWED)
def test_what_is_allowed(sql: UserSql, statement: str) -> None:
    sql.run(statement, ())


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_what_is_forbidden_changes_nothing(sql: UserSql, database: Database, statement: str) -> None:
    def shown() -> list[tuple[object, ...]]:
        tables = ("sqlite_schema", "sqlite_temp_schema", "streams", "mine", "sqlite_sequence")
        return [row for table in tables for row in database.execute(f"SELECT * FROM {table}").fetchall()]

    before = shown()
    with pytest.raises(Refusal) as refused:
        sql.run(statement, ())
    assert (refused.value.kind, database.connection.in_transaction) == ("forbidden", True)
    assert shown() == before


def test_the_text_of_a_statement_of_ours_is_asked_about_all_the_same(sql: UserSql, database: Database) -> None:
    ours = "DELETE FROM pelton_deliveries WHERE consumer=? AND seq BETWEEN ? AND ?"
    database.execute(ours, (1, 1, 1))
    with pytest.raises(Refusal):
        sql.run(ours, (1, 1, 1))
    database.execute(ours, (1, 1, 1))


def test_mistakes(sql: UserSql) -> None:
    for statement, bindings in [
        ("SELEC 1", ()),
        ("VACUUM", ()),
        ("SELECT * FROM nowhere", ()),
        ("SELECT ?", ()),
        ("SELECT 1", (2,)),
        ("SELECT ?", (object(),)),
        ("SELECT ?", (1 << 70,)),
        ("SELECT '\ud800'", ()),
    ]:
        with pytest.raises(Refusal) as refused:
            sql.run(statement, bindings)
        assert refused.value.kind == "mistake", statement


def test_names_of_ours_come_from_the_schema() -> None:
    assert all(is_reserved(name) for name in ("streams", "Meta", "m_1", "M_99", "told", "listeners", "pubsub_outbox"))
    assert not any(is_reserved(name) for name in ("orders", "m_x", "m_", "mm_1", None))


def test_what_takes_too_long_is_cut_off(database: Database) -> None:
    late = Late()
    sql = UserSql(database, late)
    database.execute("BEGIN IMMEDIATE")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT max(i) FROM n"
    late.is_late = True
    with pytest.raises(Exception, match="interrupt"):
        sql.run(endless, ())
