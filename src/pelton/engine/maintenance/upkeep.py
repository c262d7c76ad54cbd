"""The care of store files: keys, copies, checks, repair. Plain functions, that block until they are done."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pelton.api import StoreError, api_error
from pelton.api.arguments import check_callback, names_of_streams, path_of
from pelton.api.backend import Progress, StrPath
from pelton.api.keys import Key, key_bytes
from pelton.engine.faults import public_error
from pelton.engine.maintenance.recount import recount
from pelton.engine.maintenance.salvage import salvage as save_readable
from pelton.storage import Fault
from pelton.storage.backup import back_up
from pelton.storage.rebuild import rebuild


@contextmanager
def public_faults() -> Iterator[None]:
    """Raise the errors that users know for those of the storage."""
    try:
        yield
    except Fault as fault:
        raise public_error(fault) from None


def rekey(path: StrPath, key: Key | None, new_key: Key | None) -> None:
    """Encrypt a store that nobody has open (``key`` None: it is plain so far), give it another key, or decrypt it
    (``new_key`` None).

    The store is written anew beside itself and takes its place in one step: whatever happens, it is there, whole, with
    the old key or the new one. Blocks. Of a plain store that is encrypted, blocks that the file system has freed may
    hold traces; a disk that forgets them is not ours to make. Raises StoreBusyError, StoreKeyError, StoreFullError.
    """
    with public_faults():
        rebuild(path_of("rekey", path), key_bytes(key), key_bytes(new_key))


def compact(path: StrPath, key: Key | None = None) -> int:
    """Write a store that nobody has open anew, without the room that removed messages have left; return bytes saved.

    Blocks, and needs room for a second store meanwhile. Raises StoreBusyError, StoreKeyError, StoreFullError.
    """
    secret, path = key_bytes(key), path_of("compact", path)
    with public_faults():
        before = os.path.getsize(path) if os.path.exists(path) else 0
        rebuild(path, secret, secret)
        return before - os.path.getsize(path)


def backup(
    path: StrPath,
    target: StrPath,
    *,
    streams: Sequence[str] | None = None,
    progress: Progress | None = None,
    key: Key | None = None,
) -> None:
    """Copy a store, in use or not, to the new file ``target``, which is a store itself, encrypted with the same key.

    With ``streams`` only those, with their consumers. The copy is of one moment, and has its name once it is whole.
    ``progress`` is called with how much of how much is done. Blocks; in an async program use
    :meth:`pelton.Jet.backup`. Raises StoreSettingsError where ``target`` exists, StreamNotFoundError, StoreFullError.
    """
    path, target = path_of("backup", path), path_of("backup", target)
    chosen = names_of_streams("backup", streams)
    check_callback("backup", "progress", progress)
    try:
        with public_faults():
            back_up(path, key_bytes(key), target, chosen, progress or (lambda done, total: None))
    except KeyError as error:
        raise api_error("JSStreamNotFoundErr", stream=str(error.args[0])) from None


def restore(source: StrPath, path: StrPath, *, key: Key | None = None, progress: Progress | None = None) -> None:
    """Make the store ``path`` of a backup, which is verified first.

    Blocks. Raises StoreSettingsError where ``path`` exists, StoreError where the backup is damaged.
    """
    source, path = path_of("restore", source), path_of("restore", path)
    found = verify(source, key)
    if found:
        detail = f"it is damaged: {found[0]}; salvage what it holds with pelton.salvage"
        raise StoreError(source, detail)
    backup(source, path, progress=progress, key=key)


def verify(path: StrPath, key: Key | None = None) -> list[str]:
    """Return all that is wrong with a store, in words; an empty list where nothing is.

    Every page, every message's checksum, and every count and bound that is kept are compared with the rows. It reads
    one snapshot and may run while the store is used. Blocks. Raises NotAStoreError, StoreKeyError, StoreError.
    """
    path = path_of("verify", path)
    with public_faults():
        return recount(existing(path), key_bytes(key))


def salvage(path: StrPath, target: StrPath, key: Key | None = None) -> list[str]:
    """Write what a damaged store still holds to the new store ``target``; return what was lost, in words.

    The damaged one is only read, as of one moment: it may be in use. Counts and bounds are made anew; consumers of
    streams that have lost messages go back to the oldest message they had not settled. Blocks. Raises
    StoreSettingsError where ``target`` exists, NotAStoreError where the file's head is damaged, StoreBusyError where
    pages are damaged and others write meanwhile: salvage a backup of it then.
    """
    path, target = path_of("salvage", path), path_of("salvage", target)
    with public_faults():
        return save_readable(existing(path), key_bytes(key), target)


def existing(path: StrPath) -> str:
    """Return the real path of a file. Raises Fault of kind ``settings`` if there is none."""
    if not os.path.exists(path):
        raise Fault("settings", os.fspath(path), "there is no such file")
    return os.path.realpath(path)
