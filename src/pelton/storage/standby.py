"""A standby: a second file that is kept like a store that is in use, and can become the store.

Design: The standby is the file of its store as of some moment, and a log beside it, which has the first bytes of the
store's log. Following appends what was committed since, byte by byte: encrypted pages as they are. SQLite reads no
further than the last whole commit of a log, by a chain of checksums. So whatever kills the follower, the standby is the
store as of one commit.

**Nothing is missed.** The follower always holds a read transaction of the store. Where it begins, the log has pages
that are not folded into the file, so it is not begun anew; or it has none, so it may be begun anew once, and is not
folded until this transaction ends. What is read in each turn, in the next transaction, follows on what was read in the
last one: the frames after those, or all frames of a new log. Before a new log begins, the standby's log is folded into
its file by SQLite, which verifies every frame.

A follower that begins reads on if the standby's log is how the store's log begins. Otherwise nothing proves what is
missing, and the store is copied anew: to another name, verified, and renamed over the standby. So a damaged store never
takes the place of a good standby.

**The note** ``<file>-standby`` says what a file is (``store_file.py``). Whoever copies or promotes locks it, so they
take turns, and a killed one leaves no lock. Readers of a standby lock nothing and take no part in its log, like those
of a store that no process has open: SQLite must not have it open while its log grows.

**A store that was replaced** has the path of the other one in its table ``meta``. It does not open for writing, and the
processes that have it open are told as soon as they see that its catalogue has changed.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from typing import Final, NamedTuple, Protocol

import apsw
import msgspec

from pelton.runtime import pause, stopwatch
from pelton.storage.copies import copied_mode, set_tokens_far_apart, sync_file, take_name
from pelton.storage.database import Database, token_floor
from pelton.storage.faults import Fault, translated
from pelton.storage.keys import unlock
from pelton.storage.read_only import ReadOnlyDatabase
from pelton.storage.rows import integer, text
from pelton.storage.schema import REPLACED_BY
from pelton.storage.store_file import NOTE, PROMOTING, StandbyNote, admitting, note_of
from pelton.storage.troubles import forget_standbys, note_standby
from pelton.storage.wal import CHECKPOINT_PAGES, PAGE_SIZE, sync_to_disk

_log: Final = logging.getLogger("pelton.storage")
_HEADER: Final = 32
_FRAME: Final = 24 + PAGE_SIZE
_CHUNK: Final = 1 << 20
_BUSY_MS: Final = 10_000
_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.002
_NOTE_NS: Final = 500_000_000
_TOLD_NS: Final = 2_000_000_000

Verify = Callable[[str], list[str]]
"""Returns what is damaged in the store at a path."""


class LogPosition(NamedTuple):
    """A place in a log: the log's header, and how many of its frames come before."""

    header: bytes
    frames: int

    @property
    def bytes(self) -> int:
        """How long a log is that ends here."""
        return _HEADER + self.frames * _FRAME if self.frames else 0


class Source(Protocol):
    """A store whose file and log a standby follows, turn by turn; see above. Its methods raise Fault.

    ``path`` is its name in notes and faults, ``uuid`` its identity, ``mode`` the permissions of a copy. ``last_seqs``
    is the sum of the last sequences of its streams, not after the beginning of the last turn.
    """

    path: str
    uuid: str
    mode: int
    last_seqs: int

    def turn(self) -> AbstractContextManager[LogPosition]:
        """Yield where the log ends, which is to be copied in the block; if that fails, the next turn can repeat it."""

    def end(self) -> LogPosition:
        """Return where the log ends."""

    def write_log(self, begin: LogPosition | None, end: LogPosition, file: int) -> None:
        """Write the log from a place in it, or from its beginning, to the same place of another file."""

    def write_file(self, file: int) -> None:
        """Write what the file holds to another one. With the log as it ends afterwards, that is the store."""

    def begins_with(self, log: int, end: LogPosition) -> bool:
        """Whether the log begins with what another file holds up to there."""

    def fence(self, by: str) -> None:
        """Tell the store that ``by`` has taken its place."""

    def close(self) -> None:
        """Let go of the store. Idempotent."""


class SourceLog:
    """A :class:`Source` that is the file ``path`` on this host, of whatever schema. Raises Fault."""

    def __init__(self, path: str, key: bytes | None, standby: str = "", now: Callable[[], int] | None = None) -> None:
        """Open it; ``now`` (wall ns) times what is noted beside the store of how far ``standby`` has come."""
        self.path: str = os.path.realpath(path)
        _check_there(self.path)
        self._standby, self._now = standby, now
        self._told = self._copied = 0
        self._closing = ExitStack()
        self._key = key
        self._seen: int | None = None
        self.last_seqs: int = 0
        try:
            self.database: Database = Database(self.path, key=key, goal=0)
            self.uuid: str = uuid_of(self.database)
            self.mode: int = copied_mode(self.path)
            self._closing.callback(self.database.close)
            with translated(self.path):
                self._held, self._next, self._counting = (self._connect() for _ in range(3))
                self._raw = self._closing.enter_context(
                    closing(apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE))
                )
                # Without the key, a connection reads raw bytes. A descriptor of our own would drop SQLite's locks.
                self._raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self._log = os.open(self.path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
                self._closing.callback(os.close, self._log)
                self._begin(self._held)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> apsw.Connection:
        connection = self._closing.enter_context(closing(self.database.another_connection()))
        connection.set_busy_timeout(_BUSY_MS)
        # The first use stretches the key.
        connection.execute("PRAGMA schema_version").fetchall()
        return connection

    def _begin(self, connection: apsw.Connection) -> None:
        with translated(self.path):
            connection.execute("BEGIN; SELECT 1 FROM sqlite_schema").fetchall()

    @contextmanager
    def turn(self) -> Iterator[LogPosition]:
        self.database.check_sound()
        began = self._now() if self._now is not None else 0
        self._sum_last_seqs()
        self._begin(self._next)
        try:
            yield self.end()
            self._held, self._next, self._copied = self._next, self._held, began
            if self._standby and abs(began - self._told) >= _TOLD_NS:
                self.note_copied(self._standby)
                self._told = began
        finally:
            self._next.execute("ROLLBACK")

    def note_copied(self, standby: str) -> None:
        """Note beside the store that ``standby`` holds what it had when the last turn began."""
        note_standby(self.path, standby, self._copied, self.last_seqs)

    def end(self) -> LogPosition:
        with translated(self.path):
            while True:
                header = os.pread(self._log, _HEADER, 0)
                frames = max(self._counting.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0], 0)
                if os.pread(self._log, _HEADER, 0) == header:
                    return LogPosition(header if frames else b"", frames)

    def write_log(self, begin: LogPosition | None, end: LogPosition, file: int) -> None:
        offset = begin.bytes if begin is not None else 0
        while offset < end.bytes:
            chunk = self.read_log(offset, min(_CHUNK, end.bytes - offset))
            if not chunk:
                raise Fault("io", self.path, SHORTER)
            write_at(file, chunk, offset)
            offset += len(chunk)

    def read_log(self, offset: int, size: int) -> bytes:
        with translated(self.path):
            return os.pread(self._log, size, offset)

    def write_file(self, file: int) -> None:
        offset = 0
        while chunk := self.read_file(offset, _CHUNK):
            write_at(file, chunk, offset)
            offset += len(chunk)

    def read_file(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end."""
        with translated(self.path):
            left = os.path.getsize(self.path) - offset
            return self._raw.read("main", 0, offset, min(size, left))[1] if left > 0 else b""

    def begins_with(self, log: int, end: LogPosition) -> bool:
        offset = 0
        while offset < end.bytes:
            chunk = os.pread(log, min(_CHUNK, end.bytes - offset), offset)
            if not chunk or chunk != os.pread(self._log, len(chunk), offset):
                return False
            offset += len(chunk)
        return True

    def _sum_last_seqs(self) -> None:
        with translated(self.path):
            seen = self.database.seen()
        if seen != self._seen:
            with self.database.reading():
                self.last_seqs = sum_of_last_seqs(self.database)
            self._seen = seen

    def fence(self, by: str) -> None:
        fence(self.path, self._key, by)

    def close(self) -> None:
        self._closing.close()


def _check_there(path: str) -> None:
    if not os.path.exists(path):
        raise Fault("settings", path, "there is no such file")


def write_at(file: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at a place of a file."""
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done


def sum_of_last_seqs(database: Database) -> int:
    """Return the sum of the last sequences of all streams: how it grows is how many messages were stored."""
    rows = database.execute("SELECT id, last FROM stream_state WHERE id IN (SELECT id FROM streams)").fetchall()
    # The row may be behind the messages.
    tops = (database.value(f"SELECT max(?, ifnull(max(seq), 0)) FROM m_{integer(id)}", (last,)) for id, last in rows)
    return sum(map(integer, tops))


def uuid_of(database: Database) -> str:
    """Return the identity of a store."""
    return text(database.value(_UUID))


def highest_token_floor(database: Database) -> int:
    """Return the floor from which a store counts fencing tokens of deliveries, now or for any of its consumers."""
    return max(token_floor(database), integer(database.value("SELECT ifnull(max(token_floor), 0) FROM consumers")))


class NoteFile:
    """The note of a standby, locked for this process."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def read(self) -> StandbyNote | None:
        return note_of(self._path)

    def write(self, note: StandbyNote, *, durably: bool = True) -> None:
        data = msgspec.json.encode(note)
        # Spaces hide what was there before, until that is cut off.
        size = os.fstat(self._descriptor).st_size
        write_at(self._descriptor, data.ljust(size), 0)
        if durably:
            os.fsync(self._descriptor)


@contextmanager
def noting(path: str, *, patience: float = _PATIENCE_S) -> Iterator[NoteFile]:
    """Lock the note of a standby during the block. Raises Fault of kind ``busy`` if another process holds it."""
    deadline = stopwatch() + patience
    descriptor = os.open(path + NOTE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopwatch() > deadline:
                    detail = f"another process keeps {path + NOTE} locked: is it stopped? End it, then try again"
                    raise Fault("busy", path, detail) from None
                pause(_PAUSE_S)
        yield NoteFile(path, descriptor)
    finally:
        os.close(descriptor)


def fold(path: str, key: bytes | None) -> int:
    """Fold the log of a standby into its file, which nobody else may have open; return how many frames were whole.

    Raises Fault of kind ``busy`` if somebody has it open.
    """
    with translated(path), closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        unlock(connection, key)
        try:
            # So the index of the log is in memory.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
            is_busy, frames, folded = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()[0]
        except apsw.BusyError:
            is_busy, frames, folded = 1, 0, 0
        if is_busy or folded != frames:
            raise Fault("busy", path, "it is open: close it everywhere")
    return max(integer(frames), 0)


class StandbyWriter:
    """Keeps the standby ``target`` like a store. ``key`` opens both; ``now`` tells wall nanoseconds.

    ``source`` is the store's name in the note, and ``open_source`` opens it; without that, it is the path of its file.
    ``verify`` is asked of each new copy. Raises Fault: of kind ``standby`` if the target has become the store,
    ``corrupt`` if the store is damaged, and those of opening and writing.
    """

    def __init__(
        self,
        source: str,
        target: str,
        key: bytes | None,
        *,
        now: Callable[[], int],
        verify: Verify,
        demote: bool = False,
        open_source: Callable[[], Source] | None = None,
    ) -> None:
        self._source_path = source if open_source is not None else os.path.realpath(source)
        self._target = os.path.realpath(target)
        if self._source_path == self._target:
            raise Fault("settings", target, "a store is no standby of itself")
        self._key, self._now, self._verify = key, now, verify
        self._at: LogPosition | None = None
        self._noted = 0
        if os.path.lexists(self._target) and not os.path.lexists(self._target + NOTE) and not demote:
            raise Fault("settings", self._target, _IS_STORE)
        self._source: Source = SourceLog(source, key, self._target, now) if open_source is None else open_source()
        try:
            with noting(self._target) as note:
                self._begin(note, demote=demote)
        except BaseException:
            self._source.close()
            raise

    def _begin(self, note: NoteFile, *, demote: bool) -> None:
        found = note.read()
        if found is not None and found.state == "standby":
            if found.source != self._source_path:
                note.write(msgspec.structs.replace(found, source=self._source_path))
            return
        if found is not None and found.state == "promoting":
            raise Fault("standby", self._target, PROMOTING.format(self._target))
        if os.path.lexists(self._target) and not demote:
            if found is not None and found.source == self._source_path:
                self._tell_source()
            raise Fault("settings", self._target, _IS_STORE)
        if os.path.lexists(self._target):
            fold(self._target, self._key)
        note.write(StandbyNote("standby", self._source_path))

    def _tell_source(self) -> None:
        self._source.fence(self._target)
        raise Fault(
            "standby",
            self._source_path,
            f"it was replaced by its standby {self._target}, and knows it now. To let it follow the new store, which "
            f"overwrites it: `pelton copy {self._target} {self._source_path} --follow --demote`",
        )

    def turn(self, *, may_copy: bool = True, durably: bool = False) -> bool | None:
        """Bring the standby up to date; return whether anything was new.

        If the whole store has to be copied, and ``may_copy`` is False, return None. ``durably`` keeps the note, too.
        """
        with translated(self._target), noting(self._target) as note:
            found = note.read()
            if found is None or found.state != "standby":
                raise Fault("standby", self._target, "it was promoted, so nothing is copied to it any more")
            copied = self._now()
            with self._source.turn() as end:
                last_seqs = self._source.last_seqs
                if self._at is None or not self._is_at(self._at):
                    self._at = self._join(end)
                if self._at is None:
                    if not may_copy:
                        return None
                    end = self._copy()
                elif end != self._at:
                    self._append(self._at, end)
                is_new, self._at = end != self._at, end
            if is_new or durably or copied - self._noted >= _NOTE_NS or copied < self._noted:
                note.write(StandbyNote("standby", self._source_path, copied, last_seqs), durably=durably)
                self._noted = copied
            return is_new

    def _log_path(self) -> str:
        return self._target + "-wal"

    def _is_at(self, at: LogPosition) -> bool:
        """Whether the standby is as this follower has left it: another one may have gone on from there."""
        try:
            with open(self._log_path(), "rb") as log:
                return os.fstat(log.fileno()).st_size == at.bytes and log.read(_HEADER) == at.header
        except FileNotFoundError:
            return not at.bytes and os.path.exists(self._target)

    def _join(self, end: LogPosition) -> LogPosition | None:
        """Return where the standby is, if its log is how the store's log begins."""
        try:
            log = os.open(self._log_path(), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            whole = (os.fstat(log).st_size - _HEADER) // _FRAME
            at = LogPosition(end.header, whole)
            if not 0 < whole <= end.frames or not self._source.begins_with(log, at):
                return None
            # A killed follower leaves part of a frame.
            os.ftruncate(log, at.bytes)
            return at
        finally:
            os.close(log)

    def _append(self, at: LogPosition, end: LogPosition) -> None:
        is_new = end.header != at.header
        if is_new and at.frames:
            if (whole := fold(self._target, self._key)) < at.frames:
                self._at = None
                detail = f"frame {whole + 1} of {at.frames} of its log is damaged: the store is copied again"
                raise Fault("corrupt", self._target, detail)
            self._at = LogPosition(b"", 0)
        if not end.frames:
            return
        log = os.open(self._log_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, copied_mode(self._target))
        length = 0 if is_new else at.bytes
        try:
            self._source.write_log(None if is_new else at, end, log)
            sync_to_disk(log)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(log, length)
            raise
        finally:
            os.close(log)
        if is_new:
            sync_file(os.path.dirname(self._target))

    def _copy(self) -> LogPosition:
        """Copy the whole store over the standby; return where its log ended."""
        self._check_same()
        _log.info("store %s is copied anew to its standby %s", self._source_path, self._target)
        file, kept = self._target + "-unfinished", self._target + "-unfinished-log"
        descriptor = take_name(self._target, file)
        try:
            os.fchmod(descriptor, self._source.mode)
            self._source.write_file(descriptor)
            os.fsync(descriptor)
            end = self._source.end()
            if end.frames:
                for name in (kept, file + "-wal"):
                    self._write_new(name, end)
            if found := self._verify(file):
                raise Fault("corrupt", self._source_path, f"it is damaged, and was not copied: {found[0]}")
            fold(file, self._key)
            self._put_in_place(file, kept if end.frames else None)
        except BaseException:
            for name in (file, file + "-wal", kept):
                with suppress(OSError):
                    os.unlink(name)
            raise
        finally:
            os.close(descriptor)
        return end

    def _write_new(self, name: str, end: LogPosition) -> None:
        log = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(log, self._source.mode)
            self._source.write_log(None, end, log)
            os.fsync(log)
        finally:
            os.close(log)

    def _put_in_place(self, file: str, log: str | None) -> None:
        if os.path.exists(self._target):
            try:
                fold(self._target, self._key)
            except Fault as fault:
                # A damaged one is what this replaces.
                if fault.kind == "busy":
                    raise
        # What could not be folded is not the log of the new file.
        with suppress(FileNotFoundError):
            os.unlink(self._log_path())
        # A power loss must not leave the log of one beside the file of the other.
        folder = os.path.dirname(self._target)
        sync_file(folder)
        os.replace(file, self._target)
        sync_file(folder)
        if log is not None:
            os.replace(log, self._log_path())
            sync_file(folder)

    def _check_same(self) -> None:
        """Refuse to copy over a file that is another store."""
        if not os.path.exists(self._target):
            return
        try:
            with closing(ReadOnlyDatabase(self._target, key=self._key)) as other:
                uuid = uuid_of(other)
        except Fault:
            return
        if uuid != self._source.uuid:
            raise Fault("settings", self._target, f"it is a standby of another store than {self._source_path}")

    @property
    def is_log_long(self) -> bool:
        """Whether the store's log is longer than it is kept, so that those who write wait for its readers."""
        return self._at is not None and self._at.frames > CHECKPOINT_PAGES

    def close(self) -> None:
        """Let go of the store. Idempotent."""
        self._source.close()


SHORTER: Final = "its log is shorter than it was: copy it again"
_UUID: Final = "SELECT value FROM meta WHERE key='uuid'"
_IS_STORE: Final = (
    "the file exists, and is no standby: name another one, or make it one with --demote, which overwrites what it holds"
)


# --- promoting


def fence(path: str, key: bytes | None, by: str) -> None:
    """Write into a store that ``by`` has taken its place: from then on nothing more is written to it.

    Raises Fault of kind ``standby`` if another one has.
    """
    _write_replaced(path, key, by)


def unfence(path: str, key: bytes | None) -> None:
    """Take back :func:`fence`."""
    _write_replaced(path, key, None)


def _write_replaced(path: str, key: bytes | None, by: str | None) -> None:
    _check_there(path)
    forget_standbys(path)
    with admitting(path), closing(Database(path, key=key, goal=0)) as store, translated(path):
        store.execute("PRAGMA synchronous=FULL")
        with store.writing():
            found = store.value("SELECT value FROM meta WHERE key=?", (REPLACED_BY,))
            if by is not None and found not in (None, by):
                what = f"it was replaced by {found} before: if that is lost, add --without-source"
                raise Fault("standby", path, what)
            store.execute("DELETE FROM meta WHERE key=?", (REPLACED_BY,))
            if by is not None:
                store.execute("INSERT INTO meta VALUES(?, ?)", (REPLACED_BY, by))
            store.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")


def take_place(path: str, key: bytes | None, hold_leases_until: int) -> None:
    """Let a standby count its fencing tokens above all that its store has given, or may give.

    The leases in its buckets, of which nobody knows whether they were renewed, last until then. For whoever holds its
    note, and has admitted it.
    """
    fold(path, key)
    with closing(Database(path, key=key)) as store, translated(path):
        store.execute("PRAGMA synchronous=FULL")
        with store.writing():
            store.execute("DELETE FROM meta WHERE key=?", (REPLACED_BY,))
            set_tokens_far_apart(store)
            buckets = "(SELECT id FROM streams WHERE name GLOB 'KV_*')"
            store.execute(f"UPDATE timers SET due=max(due, ?) WHERE stream IN {buckets}", (hold_leases_until,))
