"""Writing a whole store anew while nobody has it open: compact, encrypted, or plain again.

Design: We take the file for ourselves: leaving the log behind (``journal_mode=DELETE``) succeeds for its only
opener, and an exclusive lock keeps others waiting. A compact copy is written beside it, given its new key, synced, and
renamed over the store. Whenever the power goes, the store is the old file or the new one, whole; a copy that was left
behind unfinished is overwritten by the next try. Who had opened the old file and waited for its lock notices that the
name means another file by now (``Database``), and is told to open it again.
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
    """Write the store anew, compact, with ``new_key``; needs room for a second one.

    Raises :class:`Fault` of kind ``busy`` where somebody has it open, and those of opening it.
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
        # The lock is on the old file, which goes with its last descriptor.
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
        raise Fault("busy", database.path, "somebody has it open, which must not be for this; close it everywhere")


def _make_empty(copy: str, like: os.stat_result) -> None:
    """Make the file for the copy, for those who may use the store; only for who has taken the store alone."""
    with suppress(FileNotFoundError):
        os.unlink(copy)
    descriptor = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            # Root may do this, for the user of the store; a member of a group may keep it for the group.
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
        # The copy is nobody's yet: if this is interrupted it is made again.
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        change_key(connection, new_key)
    finally:
        connection.close()
