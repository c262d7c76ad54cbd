"""Encryption at rest: which cipher, how a connection is given its key, and why a file does not open.

Every page of the file and of its log is encrypted and authenticated when it is written; what is held in memory is
plain. Nothing is written elsewhere: temporary tables live in memory, and the index of the log (``-shm``) holds page
numbers only. The cipher is AEGIS-256, the key is stretched with Argon2id (ADR 0013).

The file tells what it is: a plain one begins with SQLite's magic; an encrypted one with 16 bytes of salt, after which
the sizes of its pages are left readable.
"""

from __future__ import annotations

from typing import Final

import apsw

from pelton.storage.faults import Fault

CIPHER: Final = "aegis"

_MAGIC: Final = b"SQLite format 3\x00"
_HEAD: Final = 24
_FRACTIONS: Final = b"\x40\x20\x20"


def unlock(connection: apsw.Connection, key: bytes | None) -> None:
    """Give a connection its key, before anything else is asked of it."""
    if key is not None:
        connection.execute(f"PRAGMA cipher='{CIPHER}'")
        connection.execute(f"PRAGMA hexkey='{key.hex()}'")


def change_key(connection: apsw.Connection, key: bytes | None) -> None:
    """Encrypt every page anew in one transaction; None: no longer.

    A key is exchanged for another one in any journal mode, beside readers. Encrypting a plain file, or decrypting one,
    changes the room on its pages, which SQLite does only where there is no write-ahead log.
    """
    if key is None:
        connection.execute("PRAGMA rekey=''")
    else:
        connection.execute(f"PRAGMA cipher='{CIPHER}'")
        connection.execute(f"PRAGMA hexrekey='{key.hex()}'")


def why_locked(path: str, key: bytes | None) -> Fault:
    """Return the fault of a file that SQLite did not recognise when it was opened with this key."""
    head = _head_of(path)
    if head.startswith(_MAGIC):
        if key is None:
            return Fault("foreign", path, "the head of the file is damaged")
        return Fault("key", path, "it is not encrypted: open it without key=, or encrypt it first (pelton rekey)")
    # Page size, two versions and the reserve stand before the fractions; a page size is a power of two.
    if head[21:] != _FRACTIONS:
        return Fault("foreign", path, "file is not a database")
    if key is None:
        return Fault("key", path, "it is encrypted: give its key, pelton.open(path, key=...)")
    return Fault("key", path, "it is encrypted with another key, or its first page is damaged: give the key it has")


def _head_of(path: str) -> bytes:
    """Read the file's head through SQLite: a descriptor of our own would drop its locks when it is closed."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection.read("main", 0, 0, _HEAD)[1]
    except apsw.Error:
        return b""
    finally:
        connection.close()
