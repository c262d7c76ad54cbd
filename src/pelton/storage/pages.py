"""The raw pages of a store as of one moment, while others write; encrypted pages stay as they are.

Design: A connection begins a read transaction while no process writes, for well under a millisecond, and the number of
frames in the log at that moment is noted: these frames and the file are the snapshot. While the transaction lasts,
checkpoints fold only those frames into the file, and the log is not begun anew. There is one exception: if all of it
was folded before, it may be, and nothing is folded. So a page is the newest of the noted frames, or what the file holds
if it has none; and once the log was begun anew, the file holds all. Whether it was is seen by the salt in the log's
header, which changes before any frame is overwritten: it is read after each frame.

The same transaction verifies the snapshot (:meth:`PageSnapshot.damage`): what is verified is what is copied.

Which pages have changed since an earlier snapshot is seen by their digests. It needs no memory of the log, which any
process may have begun anew meanwhile, and takes 0.2 s of CPU for a store of a million messages (ADR 0038).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from itertools import islice
from struct import unpack_from
from typing import Final, cast

import apsw

from pelton.storage.database import Database
from pelton.storage.faults import Fault, translated
from pelton.storage.messages import COLUMNS, DAMAGED_COLUMNS, RowValues, all_intact, intact, unpack, unpack_all
from pelton.storage.rows import integer, text
from pelton.storage.schema import pragma
from pelton.storage.wal import PAGE_SIZE

DIGEST_SIZE: Final = 16
_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_FRAME: Final = _FRAME_HEADER + PAGE_SIZE
_CHUNK: Final = 1 << 20
_ROWS: Final = 2000
_MOST_FINDS: Final = 10
_MESSAGES: Final = re.compile(r"m_\d+")


def digest_of(page: bytes | memoryview) -> bytes:
    """Return the digest of a page, or of digests."""
    return blake2b(page, digest_size=DIGEST_SIZE).digest()


class PageSnapshot:
    """The pages of a store as of one moment; numbered from 1, each of ``PAGE_SIZE`` bytes.

    ``count`` is how many there are, ``messages`` how many messages they hold, ``uuid`` the identity of the store.
    """

    def __init__(self, source: Database, raw: apsw.Connection, log: int, frames: int, salt: bytes) -> None:
        self._source = source
        self._raw = raw
        self._log = log
        self._salt = salt
        self._frames: dict[int, int] = {}
        for frame in range(frames):
            offset = _HEADER + frame * _FRAME
            [number] = unpack_from(">I", os.pread(log, 4, offset).ljust(4, b"\0"))
            self._frames[number] = offset + _FRAME_HEADER
        self._look()
        self.count: int = pragma(source.connection, "page_count")
        self.uuid: str = text(source.value("SELECT value FROM meta WHERE key='uuid'"))

    def _look(self) -> None:
        """If the log was begun anew, the file holds all that it had."""
        if self._frames and _salt_of(self._log) != self._salt:
            self._frames.clear()

    def page(self, number: int) -> bytes:
        return next(self.pages(number, number))[1]

    def pages(self, first: int = 1, last: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield pages with their numbers, from ``first`` to ``last``: without it, to the end."""
        last = self.count if last is None else last
        step = _CHUNK // PAGE_SIZE
        for begin in range(first, last + 1, step):
            count = min(step, last + 1 - begin)
            # Without the key, a connection reads raw bytes. A descriptor of our own would drop SQLite's locks.
            chunk = self._raw.read("main", 0, (begin - 1) * PAGE_SIZE, count * PAGE_SIZE)[1]
            for number in range(begin, begin + count):
                at = (number - begin) * PAGE_SIZE
                yield number, self._newest(number) or chunk[at : at + PAGE_SIZE]

    def _newest(self, number: int) -> bytes | None:
        offset = self._frames.get(number)
        if offset is None:
            return None
        page = os.pread(self._log, PAGE_SIZE, offset)
        self._look()
        return page if self._frames else None

    def digests(self) -> bytearray:
        """Return the digests of all pages, one after the other."""
        found = bytearray()
        for _, page in self.pages():
            found += digest_of(page)
        return found

    @property
    def messages(self) -> int:
        """How many messages the store holds."""
        return sum(integer(self._source.value(f"SELECT count(*) FROM {table}")) for table in self._tables())

    def damage(self) -> list[str]:
        """Return what is damaged, at most ten findings: the structure of every page, the checksum of every message."""
        checked = self._source.execute(f"PRAGMA integrity_check({_MOST_FINDS})").fetchall()
        found = [f"SQLite: {line}" for (line,) in checked if line != "ok"]
        for table in () if found else self._tables():
            found += islice(self._damaged_rows(table), _MOST_FINDS - len(found))
        return found

    def _tables(self) -> list[str]:
        names = (text(name) for (name,) in self._source.execute("SELECT name FROM sqlite_schema WHERE type='table'"))
        return [name for name in names if _MESSAGES.fullmatch(name)]

    def _damaged_rows(self, table: str) -> Iterator[str]:
        cursor = self._source.execute(f"SELECT {COLUMNS} FROM {table}")
        try:
            while rows := list(islice(cursor, _ROWS)):
                if not all_intact(unpack_all(rows)):
                    break
            else:
                return
        except UnicodeDecodeError:
            # Damaged text cannot even be read.
            pass
        for row in self._source.execute(f"SELECT {DAMAGED_COLUMNS} FROM {table}"):
            seq, ts, subject, hdr, data, crc = cast(RowValues, row)
            told = subject.decode(errors="replace") if isinstance(subject, bytes) else subject
            if not intact(unpack((seq, ts, told, hdr, data, crc))):
                yield f"message {seq} of table {table} does not match its checksum"


@contextmanager
def page_snapshot(path: str, key: bytes | None) -> Iterator[PageSnapshot]:
    """Yield the pages that a store, of whatever schema, has now. ``key`` is that of an encrypted store.

    Raises the faults of opening it.
    """
    if not os.path.exists(path):
        raise Fault("settings", path, "there is no such file")
    path = os.path.realpath(path)
    with ExitStack() as stack:
        source, locker = (stack.enter_context(closing(Database(path, key=key, goal=0))) for _ in range(2))
        stack.enter_context(translated(path))
        other = stack.enter_context(closing(source.another_connection()))
        # It has read before the writer is taken: the first use stretches the key.
        other.execute("PRAGMA schema_version").fetchall()
        raw = stack.enter_context(closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)))
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        log = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, log)
        stack.enter_context(source.reading())
        with locker.keeping_writers_out():
            # The snapshot begins with this first read.
            source.value("SELECT 1 FROM meta")
            other.execute("PRAGMA schema_version").fetchall()
            frames = max(other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0], 0)
            salt = _salt_of(log)
        yield PageSnapshot(source, raw, log, frames, salt)


def _salt_of(log: int) -> bytes:
    return os.pread(log, _HEADER, 0)[16:24]
