"""Encryption at rest: the cipher, how a connection gets its key, and why a file does not open.

Every page of the file and of its log is encrypted and authenticated when it is written; data in memory is plain.
Nothing is written elsewhere: temporary tables are in memory, and the index of the log (``-shm``) has only page numbers.
The cipher is AEGIS-256, the key is stretched with Argon2id (ADR 0013).

The head of the file shows its kind: a plain file begins with SQLite's magic; an encrypted one with 16 bytes of salt,
after which the sizes of its pages stay readable.
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
    """Give a connection its key, before its first use."""
    if key is not None:
        connection.execute(f"PRAGMA cipher='{CIPHER}'")
        connection.execute(f"PRAGMA hexkey='{key.hex()}'")


def change_key(connection: apsw.Connection, key: bytes | None) -> None:
    """Re-encrypt every page in one transaction; decrypt it if ``key`` is None.

    A key can be replaced by another one in any journal mode, while others read. Encrypting a plain file, or decrypting
    one, changes the space on its pages, which SQLite can do only without a write-ahead log.
    """
    if key is None:
        connection.execute("PRAGMA rekey=''")
    else:
        connection.execute(f"PRAGMA cipher='{CIPHER}'")
        connection.execute(f"PRAGMA hexrekey='{key.hex()}'")


_BACKUP: Final = "restore a backup"


def why_locked(path: str, key: bytes | None) -> Fault:
    """Return the fault for a file that SQLite did not recognise when it was opened with this key."""
    head = _head_of(path)
    if head.startswith(_MAGIC):
        if key is None:
            return Fault("foreign", path, f"the header of the file is damaged: {_BACKUP}")
        return Fault("key", path, "it is not encrypted: open it without key=, or encrypt it first (pelton rekey)")
    # Page size, two versions and the reserved space come before the fractions; a page size is a power of two.
    if head[21:] != _FRACTIONS:
        return Fault("foreign", path, f"file is not a database, or its first page is damaged: then {_BACKUP}")
    if key is None:
        detail = "it is encrypted: give its key, pelton.open(path, key=...); or its first page is damaged"
        return Fault("key", path, f"{detail}: then {_BACKUP}")
    detail = "it is encrypted with another key: give its own; or its first page is damaged"
    return Fault("key", path, f"{detail}: then {_BACKUP}")


def _head_of(path: str) -> bytes:
    """Read the file's header through SQLite: closing a descriptor of our own would drop SQLite's locks."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection.read("main", 0, 0, _HEAD)[1]
    except apsw.Error:
        return b""
    finally:
        connection.close()
