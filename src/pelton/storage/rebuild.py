"""Rewrites a whole store while no process has it open: compacted, encrypted, or decrypted.

Design: it takes exclusive access to the file: switching off the log (``journal_mode=DELETE``) succeeds only for a sole
opener, and an exclusive lock keeps others waiting. A compact copy is written beside the file, gets its new key, is
synced, and renamed over the store. After a power loss at any time, the store is either the old file or the new one,
complete; an unfinished copy is overwritten by the next try. A process that had opened the old file and waited for its
lock notices that the name now means another file (``Database``), and gets an error that asks to open it again.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import apsw

from pelton.storage.database import Database
from pelton.storage.faults import Fault, translated
from pelton.storage.keys import change_key, unlock
from pelton.storage.unfinished import sync_file


def rebuild(path: str, key: bytes | None, new_key: bytes | None) -> None:
    """Rewrite the store, compacted, with ``new_key``; needs space for a second one.

    Raises :class:`Fault` of kind ``busy`` if the store is open elsewhere, and the faults of opening it.
    """
    path = os.path.realpath(path)
    if not os.path.exists(path):
        raise Fault("settings", path, "there is no such file")
    copy = path + "-rebuilt"
    database = Database(path, key=key)
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
