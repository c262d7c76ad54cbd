"""What is done to a store that nobody has open: rewriting it. Plain functions, that block until they are done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pelton.engine.faults import public_error
from pelton.engine.keys import Key, key_bytes
from pelton.storage import Fault
from pelton.storage.rebuild import rebuild

Path = str | os.PathLike[str]


@contextmanager
def _public() -> Iterator[None]:
    try:
        yield
    except Fault as fault:
        raise public_error(fault) from None


def rekey(path: Path, key: Key | None, new_key: Key | None) -> None:
    """Encrypt a store that nobody has open (``key`` None: it is plain so far), give it another key, or decrypt it
    (``new_key`` None).

    The store is written anew beside itself and takes its place in one step: whatever happens, it is there, whole, with
    the old key or the new one. Blocks. Of a plain store that is encrypted, blocks that the file system has freed may
    hold traces; a disk that forgets them is not ours to make. Raises StoreBusyError, StoreKeyError, StoreFullError.
    """
    with _public():
        rebuild(os.fspath(path), key_bytes(key), key_bytes(new_key))


def compact(path: Path, key: Key | None = None) -> int:
    """Write a store that nobody has open anew, without the room that removed messages have left; return bytes saved.

    Blocks, and needs room for a second store meanwhile. Raises StoreBusyError, StoreKeyError, StoreFullError.
    """
    secret = key_bytes(key)
    with _public():
        before = os.path.getsize(path) if os.path.exists(path) else 0
        rebuild(os.fspath(path), secret, secret)
        return before - os.path.getsize(path)
