"""Copies of a store: a backup while it is in use, streams of one store into another, a whole store rewritten.

**Unfinished files.** A file is written under another name until it is complete, readable for those who may read its
source. The other name, ``<target>-unfinished``, is locked while it is written: two copies to one target do not mix, and
what a killed process left is overwritten. A link, or anything else that is not a regular file, is not touched.

**A backup** of a store that is in use: a separate connection holds one snapshot for as long as the copy takes. Streams
are copied row by row into a new store. A whole store is copied as bytes, encrypted or not, including free space and
damage: first the file, then its log while no process writes (some milliseconds). While the snapshot is held, a
checkpoint copies nothing into the file that does not stay in the log as well, so the two together are the store as of
the end of the copy, as after a crash (ADR 0015).

**A restore** copies streams of one store, usually a backup, into another one that is in use, in one transaction. The
rows keep their contents and get new ids: of streams, consumers and sources. Before it is committed, all messages are
read again on both sides and compared: neither side changes meanwhile, however busy both are. A source continues from
its position if its origin is copied too, or exists already (with the same name and creation time); otherwise it starts
again. Waiting pulls and pins belong to processes that are gone, and are not copied.

**A rebuild** rewrites a whole store while no process has it open: compacted, encrypted, or decrypted. It takes
exclusive access to the file: switching off the log (``journal_mode=DELETE``) succeeds only for a sole opener, and an
exclusive lock keeps others waiting. A compact copy is written beside the file, gets its new key, is synced, and renamed
over the store. After a power loss at any time, the store is either the old file or the new one, complete; an unfinished
copy is overwritten by the next try. A process that had opened the old file and waited for its lock notices that the
name now means another file (``Database``), and gets an error that asks to open it again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import apsw

from pelton.storage.damage import forget_damage
from pelton.storage.database import OF_EPOCHS, Database, raise_token_floor, token_floor
from pelton.storage.faults import Fault, translated
from pelton.storage.keys import change_key, unlock
from pelton.storage.messages import unpack
from pelton.storage.rows import integer, text
from pelton.storage.schema import TOKEN_EPOCH, is_reserved, message_table
from pelton.storage.store_file import OWNER_ONLY, lock_alone


def set_tokens_apart(copy: Database, above: int = 0) -> None:
    """Let a copy of a store give its own tokens, and accept none that the store has given or will give.

    Both continue from the same delivery numbers, so the same number may belong to different messages.
    """
    column = "token_floor" if copy.schema > OF_EPOCHS else "epoch"
    highest = copy.value(f"SELECT ifnull(max({column}), 0) FROM consumers")
    copy.execute(f"UPDATE consumers SET {column}=?", (raise_token_floor(copy, max(above, integer(highest))),))


# More often than a store raises its floor in its life: with each start of its machine, and each restore.
_EPOCHS: Final = 1 << 12


def set_tokens_far_apart(copy: Database) -> None:
    """The same for a copy that goes on in place of its store: above all that the store can have given since."""
    set_tokens_apart(copy, token_floor(copy) + _EPOCHS * (TOKEN_EPOCH if copy.schema > OF_EPOCHS else 1))


_TRIES: Final = 100
_BESIDE: Final = ("-wal", "-shm", "-journal")


def copied_mode(source: str) -> int:
    """Return the permissions of a copy: those of its source, and write permission for its owner."""
    return (stat.S_IMODE(os.stat(source).st_mode) & 0o666) | 0o600


@contextmanager
def unfinished(target: str, source: str | None) -> Iterator[str]:
    """Yield the name of a new, empty file for a copy of ``source``; sync and rename it after the block.

    Without a source, it is readable for its owner alone.

    Raises Fault of kind ``settings`` if ``target`` exists, ``busy`` if another copy to it is being written.
    """
    _check_free(target)
    file = target + "-unfinished"
    descriptor = take_name(target, file)
    try:
        os.fchmod(descriptor, OWNER_ONLY if source is None else copied_mode(source))
        yield file
        sync_file(file)
        _check_free(target)
        os.replace(file, target)
        forget_damage(target)
        file = target
        sync_file(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        _forget(file, "", *_BESIDE)
        raise
    finally:
        # Not before: another process must not mistake the file for an abandoned one.
        os.close(descriptor)


def _check_free(target: str) -> None:
    if os.path.lexists(target):
        raise Fault("settings", target, "the file exists already; name another, or remove it")


def take_name(target: str, file: str) -> int:
    """Return a descriptor of the unfinished ``file`` of a copy to ``target``: empty, and locked for this process."""
    for _ in range(_TRIES):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if os.path.islink(file) or os.path.isdir(file):
                raise _in_the_way(target, file) from error
            raise
        try:
            if _is_ours(target, file, descriptor):
                os.ftruncate(descriptor, 0)
                _forget(file, *_BESIDE)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise _in_the_way(target, file)


def _is_ours(target: str, file: str, descriptor: int) -> bool:
    """Return whether the file is locked and still has its name; False if it was just renamed or removed."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise _in_the_way(target, file)
    if not lock_alone(descriptor):
        raise Fault("busy", target, f"another copy to it is being written, to {file}; wait for it")
    try:
        return os.path.samestat(os.lstat(file), found)
    except FileNotFoundError:
        return False


def _in_the_way(target: str, file: str) -> Fault:
    return Fault("settings", target, f"{file}, the temporary name of the copy, is something else; remove or rename it")


def _forget(file: str, *suffixes: str) -> None:
    for suffix in suffixes:
        with suppress(FileNotFoundError):
            os.unlink(file + suffix)


def sync_file(path: str) -> None:
    """Force a file, or a folder's names, to the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Told = Callable[[int, int], object]

_CHUNK: Final = 1 << 20
_ROWS: Final = 2000
_DIGEST: Final = 16
_OF_ROWS: Final = ("streams",)


def back_up(path: str, key: bytes | None, target: str, streams: Sequence[str] | None, told: Told) -> None:
    """Copy a store, or some streams of it with their consumers, to the file ``target``, encrypted with the same key.

    ``told`` is called with the amount done and the total: bytes of a store, rows of streams. Raises :class:`Fault` of
    kind ``settings`` if ``target`` exists, and the faults of opening the store; KeyError for an unknown stream.
    """
    if not os.path.exists(path):
        raise Fault("settings", path, "there is no such file")
    source = Database(os.path.realpath(path), key=key, goal=0)
    try:
        with unfinished(target, path) as file, translated(path), source.reading():
            # The snapshot begins with this first read.
            source.value("SELECT 1 FROM meta")
            if streams is None:
                copy_bytes(source, file, key, told)
            else:
                _copy_streams(source, file, key, _numbers(source, streams), told)
    finally:
        source.close()


def copy_bytes(source: Database, file: str, key: bytes | None, told: Told) -> None:
    """Copy a store as bytes, with its log, to an empty file; inside a snapshot of ``source``."""
    # A connection without the key reads raw bytes. A descriptor of our own would drop SQLite's locks when closed.
    raw = apsw.Connection(source.path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        with open(file, "r+b") as copy:
            # SQLite returns zeros for bytes beyond the end.
            while left := os.path.getsize(source.path) - copy.tell():
                copy.write(raw.read("main", 0, copy.tell(), min(_CHUNK, left))[1])
                told(copy.tell(), os.path.getsize(source.path))
    finally:
        raw.close()
    locker = Database(source.path, key=key, goal=0, torn=True)
    try:
        with locker.keeping_writers_out():
            _copy_log(source.path + "-wal", file + "-wal")
    finally:
        locker.close()
    _fold(file, key)
    set_apart(file, key)


def set_apart(file: str, key: bytes | None, *, far: bool = False) -> None:
    """Let a copy of a store give its own tokens; ``far``: above all that the store has given since it was copied."""
    copy = Database(file, key=key, goal=0, torn=True)
    try:
        with copy.writing():
            if far:
                set_tokens_far_apart(copy)
            else:
                set_tokens_apart(copy)
    except Fault as fault:
        # A damaged store is copied as it is.
        if fault.kind == "full":
            raise
    finally:
        copy.close()


def _copy_log(log: str, copy: str) -> None:
    import shutil

    with open(log, "rb") as source, open(copy, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as target:
        shutil.copyfileobj(source, target, _CHUNK)


def _fold(file: str, key: bytes | None) -> None:
    """Checkpoint the log of a copy into it."""
    copy = apsw.Connection(file)
    try:
        unlock(copy, key)
        copy.execute("PRAGMA writable_schema=ON")
        copy.execute("PRAGMA synchronous=OFF")
        copy.execute("PRAGMA journal_mode=DELETE")
    finally:
        copy.close()


def _numbers(source: Database, streams: Sequence[str]) -> list[int]:
    known = {text(name): integer(number) for number, name in source.execute("SELECT id, name FROM streams")}
    return [known[name] for name in streams]


def _copy_streams(source: Database, file: str, key: bytes | None, streams: list[int], told: Told) -> None:
    parts = [(table, where) for table in tables(source) if (where := belonging(source, table, streams)) is not None]
    total = sum(int(source.value(f"SELECT count(*) FROM {table} WHERE {where}")) for table, where in parts)
    done = 0
    copy = Database(file, key=key, goal=source.schema)
    try:
        for stream in streams:
            copy.execute(message_table(stream))
        for table, where in parts:
            for rows in in_parts(source, table, where):
                marks = ", ".join("?" * len(rows[0]))
                with copy.writing():
                    copy.executemany(f"INSERT INTO {table} VALUES({marks})", rows)
                done += len(rows)
                told(done, total)
        with copy.writing():
            set_tokens_apart(copy, token_floor(source))
    finally:
        copy.close()


def in_parts(source: Database, table: str, where: str) -> Iterator[list[Any]]:
    cursor = source.execute(f"SELECT * FROM {table} WHERE {where}")
    while rows := list(islice(cursor, _ROWS)):
        yield rows


def tables(source: Database) -> list[str]:
    """Return the names of Pelton's tables, without the user's own tables, which belong to no stream."""
    found = (text(name) for (name,) in source.execute("SELECT name FROM sqlite_schema WHERE type='table'"))
    return [name for name in found if is_reserved(name)]


def belonging(source: Database, table: str, streams: list[int]) -> str | None:
    """Return SQL for the rows of a table that belong to the streams; None if no row of the table can."""
    numbers = ", ".join(map(str, streams))
    if table.startswith("m_"):
        return "1" if int(table[2:]) in streams else None
    columns = {text(row[1]) for row in source.execute(f"PRAGMA table_info({table})")}
    if table in _OF_ROWS:
        return f"id IN ({numbers})"
    if "stream" in columns:
        return f"stream IN ({numbers})"
    consumers = f"(SELECT id FROM consumers WHERE stream IN ({numbers}))"
    # Tables of their own before schema 6.
    if table == "stream_state":
        return f"id IN ({numbers})"
    if table == "consumer_state":
        return f"id IN {consumers}"
    if table == "pelton_deliveries":
        # Those of consumer 0 are the states of streams.
        return f"consumer IN {consumers} OR consumer=0 AND seq IN ({numbers})"
    if table == "parked":
        return f"source IN (SELECT id FROM sourcing WHERE stream IN ({numbers}))"
    return f"consumer IN {consumers}" if "consumer" in columns else None


_LEFT_BEHIND: Final = ("pulls", "pins", "nearest")
_MESSAGE: Final = "seq, ts, subject, hdr, data, crc"
_FIRST: Final = ("streams", "consumers", "sourcing")
_REFERENCES: Final = {"stream": "streams", "consumer": "consumers"}


class Restored(NamedTuple):
    """A stream to copy: its id in the source, its name and configuration in the target."""

    number: int
    name: str
    config: bytes


class WrittenStream(NamedTuple):
    """A stream in a copy, its numbers of messages, its last sequence, and a checksum over the messages."""

    name: str
    messages: int
    last_seq: int
    checksum: str


def copy_streams(
    source: Database, target: Database, streams: Sequence[Restored], names: Mapping[str, str], told: Told
) -> list[WrittenStream]:
    """Copy streams with their consumers, inside a write transaction of ``target``; ``names`` maps renamed streams.

    ``told`` is called with the rows done and the total. The caller must check that the names are free. Raises
    :class:`Fault` of kind ``corrupt`` if a message was not written as it was read.
    """
    return _Copy(source, target, streams, names, told).run()


class _Copy:
    def __init__(
        self, source: Database, target: Database, streams: Sequence[Restored], names: Mapping[str, str], told: Told
    ) -> None:
        self._source = source
        self._target = target
        self._streams = {stream.number: stream for stream in streams}
        self._names = names
        self._told = told
        self._numbers: dict[str, dict[int, int]] = {"streams": {}, "consumers": {}, "sourcing": {}}
        self._origins = self._known_origins()
        # Fencing tokens only grow, here as well, and earlier ones belong to other deliveries.
        self._floor = raise_token_floor(target, token_floor(source))
        self._done = self._total = 0

    def run(self) -> list[WrittenStream]:
        source, chosen = self._source, list(self._streams)
        # The source may be of an older schema, which is seen as the present one; messages are the same in all.
        names = [f"m_{number}" for number in chosen] + [name for name in tables(self._target) if name[:2] != "m_"]
        found = {table: belonging(source, table, chosen) for table in names if table not in _LEFT_BEHIND}
        parts = {table: where for table, where in found.items() if where is not None}
        counts = (int(source.value(f"SELECT count(*) FROM {table} WHERE {where}")) for table, where in parts.items())
        self._total = sum(counts)
        for table in sorted(parts, key=lambda table: _FIRST.index(table) if table in _FIRST else len(_FIRST)):
            self._copy(table, parts[table])
        return [self._compare(stream) for stream in self._streams.values()]

    def _compare(self, stream: Restored) -> WrittenStream:
        """Read a stream's messages again, and compare them."""
        from hashlib import blake2b

        number = self._numbers["streams"][stream.number]
        digest, messages, last = blake2b(digest_size=_DIGEST), 0, 0
        theirs = self._target.execute(f"SELECT {_MESSAGE} FROM m_{number} ORDER BY seq")
        for row in self._source.execute(f"SELECT {_MESSAGE} FROM m_{stream.number} ORDER BY seq"):
            if row != next(theirs, None):
                detail = f"stream {stream.name!r}: message {row[0]} was not written as it was read: copy it again"
                raise Fault("corrupt", self._target.path, detail)
            seq, ts, subject, hdr, data, _ = unpack(row)
            digest.update(repr((seq, subject, hdr or b"", len(data), ts)).encode() + data)
            messages, last = messages + 1, seq
        recorded = integer(self._target.value("SELECT last FROM stream_state WHERE id=?", (number,)))
        return WrittenStream(stream.name, messages, max(last, recorded), digest.hexdigest())

    def _known_origins(self) -> dict[int, int]:
        sql = "SELECT name, created, id FROM streams"
        here = {(name, created): integer(number) for name, created, number in self._target.execute(sql)}
        rows = self._source.execute(sql).fetchall()
        return {integer(number): here[name, made] for name, made, number in rows if (name, made) in here}

    def _copy(self, table: str, where: str) -> None:
        into = table
        if table.startswith("m_"):
            number = self._numbers["streams"][int(table[2:])]
            self._target.execute(message_table(number))
            into = f"m_{number}"
        columns = [text(row[1]) for row in self._source.execute(f"PRAGMA table_info({table})")]
        marks = ", ".join("?" * len(columns))
        for rows in in_parts(self._source, table, where):
            if table in _FIRST:
                self._number(table, columns, marks, rows)
            else:
                mapped = rows if into != table else [self._mapped(table, columns, row) for row in rows]
                self._target.executemany(f"INSERT INTO {into} VALUES({marks})", mapped)
            self._done += len(rows)
            self._told(self._done, self._total)

    def _number(self, table: str, columns: Sequence[str], marks: str, rows: Iterable[Any]) -> None:
        for row in rows:
            values = dict(zip(columns, self._mapped(table, columns, row), strict=True))
            values["id"] = None
            if table == "consumers":
                values["token_floor"] = self._floor
            elif table == "streams":
                stream = self._streams[row[0]]
                values |= {"name": stream.name, "config": stream.config}
            elif table == "sourcing":
                origin, rest = str(values["source"]).split(" ", 1)
                values["source"] = f"{self._names.get(origin, origin)} {rest}"
                values["origin"] = (self._origins | self._numbers["streams"]).get(values["origin"], 0)
            self._target.execute(f"INSERT INTO {table} VALUES({marks})", tuple(values.values()))
            self._numbers[table][row[0]] = self._target.connection.last_insert_rowid()

    def _mapped(self, table: str, columns: Sequence[str], row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row with the ids of the target."""
        if table == "pelton_deliveries" and row[0] == 0:
            consumer, seq, *rest = row
            return consumer, self._numbers["streams"][seq], *rest
        return tuple(self._value(table, column, value) for column, value in zip(columns, row, strict=True))

    def _value(self, table: str, column: str, value: Any) -> Any:
        if column == "source" and table == "parked":
            return self._numbers["sourcing"][value]
        return self._numbers[_REFERENCES[column]][value] if column in _REFERENCES else value


def rebuild(path: str, key: bytes | None, new_key: bytes | None) -> None:
    """Rewrite the store, compacted, with ``new_key``; needs space for a second one.

    Raises :class:`Fault` of kind ``busy`` if the store is open elsewhere, and the faults of opening it.
    """
    path = os.path.realpath(path)
    if not os.path.exists(path):
        raise Fault("settings", path, "there is no such file")
    copy = path + "-rebuilt"
    database = Database(path, key=key, goal=0)
    try:
        with translated(path):
            _take_alone(database)
            _make_empty(copy, os.stat(path))
            database.execute("VACUUM INTO ?", (copy,))
            _exchange(copy, key, new_key)
            sync_file(copy)
            os.replace(copy, path)
            sync_file(os.path.dirname(path))
    finally:
        # The lock is on the old file, which disappears with its last descriptor.
        database.close()


def _take_alone(database: Database) -> None:
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        mode = database.value("PRAGMA journal_mode=DELETE")
        # The lock is taken by the first write, and then kept.
        database.execute("UPDATE meta SET value=value WHERE key='catalogue'")
    except apsw.BusyError:
        mode = "wal"
    if mode != "delete":
        raise Fault("busy", database.path, "this needs the store for itself, but it is open; close it everywhere")


def _make_empty(copy: str, like: os.stat_result) -> None:
    """Create the file for the copy, with the owner and permissions of the store; needs exclusive access."""
    with suppress(FileNotFoundError):
        os.unlink(copy)
    descriptor = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            # Root may give it to the store's user; a member of the store's group may give it to the group.
            with suppress(PermissionError):
                os.fchown(descriptor, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
    finally:
        os.close(descriptor)


def _exchange(path: str, key: bytes | None, new_key: bytes | None) -> None:
    if key == new_key:
        return
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        unlock(connection, key)
        # No process uses the copy yet: if this is interrupted, the next try creates it again.
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        change_key(connection, new_key)
    finally:
        connection.close()
