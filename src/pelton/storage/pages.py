"""The raw pages of a store as of one moment, while others write; encrypted pages stay as they are.

Design: A connection begins a read transaction while no process writes, for well under a millisecond, and the number of
frames in the log at that moment is noted: these frames and the file are the snapshot. While the transaction lasts,
checkpoints fold only those frames into the file, and the log is not begun anew. There is one exception: if all of it
was folded before, it may be, and nothing is folded. So a page is the newest of the noted frames, or what the file holds
if it has none; and once the log was begun anew, the file holds all. Whether it was is seen by the salt in the log's
header, which changes before any frame is overwritten: it is read after each frame.

The same transaction verifies the snapshot (:meth:`PageSnapshot.damage`): what is verified is what is copied.

**On pages that have not changed since a verified snapshot, no message is verified again.** A flipped bit changes its
page. So the rows to verify are those on the leaf pages that have changed, whatever their table. Changed pages of large
payloads belong to such a row, or to the list of free pages; if one does not, all messages are verified. An encrypted
page is read for that through the connection that has the key. It changes as well when it is folded from the log into
the file, as it is encrypted anew.

Which pages have changed since an earlier snapshot is seen by their digests. It needs no memory of the log, which any
process may have begun anew meanwhile, and takes 0.2 s of CPU for a store of a million messages (ADR 0038).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
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
_IDS: Final = 500
# The first page begins with the header of the file.
_FIRST: Final = 100
_OF_TREES: Final = (2, 5, 10, 13)
_LEAF: Final = 13
_MOST_FINDS: Final = 10
_MESSAGES: Final = re.compile(r"m_\d+")


def digest_of(page: bytes | memoryview) -> bytes:
    """Return the digest of a page, or of digests."""
    return blake2b(page, digest_size=DIGEST_SIZE).digest()


class PageSnapshot:
    """The pages of a store as of one moment; numbered from 1, each of ``PAGE_SIZE`` bytes.

    ``count`` is how many there are, ``messages`` how many messages they hold, ``uuid`` the identity of the store.
    """

    def __init__(
        self, source: Database, raw: apsw.Connection, log: int, frames: int, salt: bytes, *, is_encrypted: bool
    ) -> None:
        self._source = source
        self._is_encrypted = is_encrypted
        self._raw = raw
        self._log = log
        self._salt = salt
        self._usable: int | None = None
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

    def _read_decrypted(self, number: int) -> bytes:
        """Return what SQLite has on a page: without what encryption keeps at its end."""
        if not self._is_encrypted:
            return self.page(number)
        read = self._source.connection.read
        if self._usable is None:
            self._usable = PAGE_SIZE
            # The first page tells how many bytes of each are not used.
            self._usable -= self._read_decrypted(1)[20]
        offset, page = self._frames.get(number), b""
        if offset is not None:
            page = read("main", 1, offset, PAGE_SIZE)[1]
            self._look()
        if not self._frames or offset is None:
            page = read("main", 0, (number - 1) * PAGE_SIZE, PAGE_SIZE)[1]
        return page[: self._usable]

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

    def damage(self, changed: Sequence[int] | None = None) -> list[str]:
        """Return what is damaged, at most ten findings: the structure of every page, the checksum of every message.

        ``changed`` are the pages that are not those of a snapshot that was verified; None: all.
        """
        checked = self._source.execute(f"PRAGMA integrity_check({_MOST_FINDS})").fetchall()
        found = [f"SQLite: {line}" for (line,) in checked if line != "ok"]
        tables = () if found else self._tables()
        rows = None if changed is None or found else self._rows_on(changed)
        if rows is not None and len(rows) * len(tables) > self.messages:
            rows = None
        for table in tables:
            found += islice(self._damaged_rows(table, rows), _MOST_FINDS - len(found))
        return found

    def _rows_on(self, changed: Sequence[int]) -> list[int] | None:
        """Return the ids of the rows on these pages; None if that cannot be told."""
        # In a file of so many pages, one of a large payload may look like one of a tree.
        if self.count >= _OF_TREES[0] << 24:
            return None
        rows: set[int] = set()
        payloads, accounted = set[int](), self._trunks_of_free_pages()
        for number in changed:
            page = self._read_decrypted(number)
            if page[_FIRST if number == 1 else 0] not in _OF_TREES:
                payloads.add(number)
            for row, payload in rows_of_leaf(page, _FIRST if number == 1 else 0):
                rows.add(row)
                # A chain without an end is damage, which has been looked for.
                while payload and payload not in accounted and payload <= self.count:
                    accounted.add(payload)
                    payload = int.from_bytes(self._read_decrypted(payload)[:4], "big")
        return sorted(rows) if payloads <= accounted else None

    def _trunks_of_free_pages(self) -> set[int]:
        found: set[int] = set()
        trunk = int.from_bytes(self._read_decrypted(1)[32:36], "big")
        while trunk and trunk not in found and trunk <= self.count:
            found.add(trunk)
            trunk = int.from_bytes(self._read_decrypted(trunk)[:4], "big")
        return found

    def _tables(self) -> list[str]:
        names = (text(name) for (name,) in self._source.execute("SELECT name FROM sqlite_schema WHERE type='table'"))
        return [name for name in names if _MESSAGES.fullmatch(name)]

    def _damaged_rows(self, table: str, rows: Sequence[int] | None = None) -> Iterator[str]:
        """Yield what is damaged of all rows of a table, or of those with these ids."""
        if rows is None:
            yield from self._damaged_in(table, "", ())
            return
        for begin in range(0, len(rows), _IDS):
            ids = rows[begin : begin + _IDS]
            yield from self._damaged_in(table, f"WHERE seq IN ({','.join('?' * len(ids))})", ids)

    def _damaged_in(self, table: str, where: str, ids: Sequence[int]) -> Iterator[str]:
        cursor = self._source.execute(f"SELECT {COLUMNS} FROM {table} {where}", ids)
        try:
            while rows := list(islice(cursor, _ROWS)):
                if not all_intact(unpack_all(rows)):
                    break
            else:
                return
        except UnicodeDecodeError:
            # Damaged text cannot even be read.
            pass
        for row in self._source.execute(f"SELECT {DAMAGED_COLUMNS} FROM {table} {where}", ids):
            seq, ts, subject, hdr, data, crc = cast(RowValues, row)
            told = subject.decode(errors="replace") if isinstance(subject, bytes) else subject
            if not intact(unpack((seq, ts, told, hdr, data, crc))):
                yield f"message {seq} of table {table} does not match its checksum"


def rows_of_leaf(page: bytes, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the ids of the rows on a page, each with the page on which its payload goes on, or 0.

    Nothing if the page, whose head begins there, is no leaf of a table (the format of SQLite's files).
    """
    if page[begin] != _LEAF:
        return
    most = len(page) - 35
    least = (len(page) - 12) * 32 // 255 - 23
    for cell in range(unpack_from(">H", page, begin + 3)[0]):
        [at] = unpack_from(">H", page, begin + 8 + 2 * cell)
        size, at = _varint(page, at)
        row, at = _varint(page, at)
        if size <= most:
            yield row, 0
            continue
        local = least + (size - least) % (len(page) - 4)
        at += local if local <= most else least
        yield row, int.from_bytes(page[at : at + 4], "big")


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for byte in page[at : at + 8]:
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    value = value << 8 | page[at]
    return value - (value >> 63 << 64), at + 1


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
        yield PageSnapshot(source, raw, log, frames, salt, is_encrypted=key is not None)


def _salt_of(log: int) -> bytes:
    return os.pread(log, _HEADER, 0)[16:24]
