"""Upkeep of store files: keys, copies, checks, repair. Plain functions, which block until they are done."""

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
from pelton.storage.copies import back_up, rebuild


@contextmanager
def public_faults() -> Iterator[None]:
    """Translate storage faults raised in the block into public errors."""
    try:
        yield
    except Fault as fault:
        raise public_error(fault) from None


def rekey(path: StrPath, key: Key | None, new_key: Key | None) -> None:
    """Encrypt a store that no process has open (``key`` None: it is not encrypted yet), change its key, or decrypt it
    (``new_key`` None).

    The store is rewritten to a new file, which replaces it in one step: whatever happens, the store is complete, with
    the old key or the new one. Blocks. After you encrypt a plain store, blocks that the file system has freed may
    still hold its data; Pelton cannot erase them. Raises StoreBusyError, StoreKeyError, StoreFullError.
    """
    with public_faults():
        rebuild(path_of("rekey", path), key_bytes(key), key_bytes(new_key))


def compact(path: StrPath, key: Key | None = None) -> int:
    """Rewrite a store that no process has open, without the space of removed messages; return the bytes saved.

    ``key`` is that of an encrypted store. Blocks, and temporarily needs space for a second store. Raises
    StoreBusyError, StoreKeyError, StoreFullError.
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

    With ``streams``, copy only those, with their consumers. The copy is a snapshot, and gets its name once it is
    complete. ``progress`` is called with the amount done and the total. Blocks; in an async program use
    :meth:`pelton.Jet.backup`. Raises StoreSettingsError if ``target`` exists, StreamNotFoundError, StoreFullError.
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
    """Create the store ``path`` from a backup, which is verified first.

    ``key`` is that of an encrypted backup; ``progress`` is called with the amount done and the total. Blocks. Raises
    StoreSettingsError if ``path`` exists, StoreError if the backup is damaged.
    """
    source, path = path_of("restore", source), path_of("restore", path)
    found = verify(source, key)
    if found:
        detail = f"it is damaged: {found[0]}; salvage what it holds with pelton.salvage"
        raise StoreError(source, detail)
    backup(source, path, progress=progress, key=key)


def verify(path: StrPath, key: Key | None = None) -> list[str]:
    """Return a description of every problem in a store; an empty list if it is sound.

    It checks every page and every message's checksum, and compares every recorded count and bound with the rows. It
    reads one snapshot and may run while the store is in use. ``key`` is that of an encrypted store. Blocks. Raises
    NotAStoreError, StoreKeyError, StoreError.
    """
    path = path_of("verify", path)
    with public_faults():
        return recount(existing(path), key_bytes(key))


def salvage(path: StrPath, target: StrPath, key: Key | None = None) -> list[str]:
    """Write what a damaged store still holds to the new store ``target``; return descriptions of what was lost.

    The damaged store is only read, as one snapshot: it may be in use. Counts and bounds are computed again; consumers
    of streams that have lost messages go back to the oldest message they had not settled. ``key`` is that of an
    encrypted store. Blocks. Raises StoreSettingsError if ``target`` exists, NotAStoreError if the file's header is
    damaged, StoreBusyError if pages are damaged and others write at the same time: then salvage a backup of it.
    """
    path, target = path_of("salvage", path), path_of("salvage", target)
    with public_faults():
        return save_readable(existing(path), key_bytes(key), target)


def existing(path: StrPath) -> str:
    """Return the real path of a file. Raises Fault of kind ``settings`` if it does not exist."""
    if not os.path.exists(path):
        raise Fault("settings", os.fspath(path), "there is no such file")
    return os.path.realpath(path)
