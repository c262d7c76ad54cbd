"""Upkeep of store files: keys, copies, checks, repair. Plain functions, which block until they are done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final

import msgspec

from pelton.api import ConfigError, StoreError, StreamConfig, api_error
from pelton.api.arguments import check_callback, names_of_streams, path_of
from pelton.api.backend import Progress, StrPath
from pelton.api.build import check_name
from pelton.api.keys import Key, key_bytes
from pelton.engine.connections import Connections
from pelton.engine.host import Host, public_error
from pelton.engine.transactions import Transactions
from pelton.engine.verbs.streams import check_restored
from pelton.runtime import Clock, Deadline, Halt, on_thread
from pelton.sourcing import check_circle
from pelton.storage import (
    SCHEMA_VERSION,
    Committer,
    DamagedRowError,
    Database,
    Fault,
    ReadOnlyDatabase,
    integer,
    text,
    translated,
)
from pelton.storage.copies import Restored, WrittenStream, back_up, copy_streams, rebuild
from pelton.storage.damage import damage_known, damage_verified
from pelton.streams.rules import decode_config, encode_config
from pelton.subjects import clash_between


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
    reads one snapshot and may run while the store is in use. How many problems there are is remembered beside the store
    (``x.pelton-damage``), for `pelton info`, the dashboard and metrics, until a store is verified without any. ``key``
    is that of an encrypted store. Blocks. Raises NotAStoreError, StoreKeyError, StoreError.
    """
    path = path_of("verify", path)
    with public_faults():
        from pelton.engine.salvage import recount

        real, before = existing(path), damage_known(existing(path))
        found = recount(real, key_bytes(key))
    damage_verified(real, found, before)
    return found


def salvage(path: StrPath, target: StrPath, key: Key | None = None) -> list[str]:
    """Write what a damaged store still holds to the new store ``target``; return descriptions of what was lost.

    The damaged store is only read, as one snapshot: it may be in use. Counts and bounds are computed again; consumers
    of streams that have lost messages go back to the oldest message they had not settled. ``key`` is that of an
    encrypted store. Blocks. Raises StoreSettingsError if ``target`` exists, NotAStoreError if the file's header is
    damaged, StoreBusyError if pages are damaged and others write at the same time: then salvage a backup of it.
    """
    path, target = path_of("salvage", path), path_of("salvage", target)
    with public_faults():
        from pelton.engine.salvage import salvage as save_readable

        return save_readable(existing(path), key_bytes(key), target)


def is_outdated(path: StrPath, key: Key | None = None) -> bool:
    """Whether a store is as an older Pelton wrote it, so that opening it for writing would migrate it. Blocks.

    Raises NotAStoreError, StoreKeyError, StoreError.
    """
    with public_faults(), closing(ReadOnlyDatabase(existing(path), key=key_bytes(key))) as store:
        return store.schema < SCHEMA_VERSION


def migrate(path: StrPath, *, keep: StrPath | None = None, key: Key | None = None) -> int:
    """Bring a store that an older Pelton wrote up to date, now; return the version of the schema that it had.

    Opening it for writing does the same. From then on, older Peltons refuse it (StoreVersionError), also processes that
    have it open. ``keep`` is a new file for a copy of the store as it was, which they can open; none is made of a store
    that is up to date. ``key`` is that of an encrypted store. Blocks. Raises StoreSettingsError if ``keep`` exists,
    NotAStoreError, StoreKeyError, StoreBusyError, StoreFullError.
    """
    path = path_of("migrate", path)
    with public_faults(), closing(Database(existing(path), key=key_bytes(key), goal=0)) as store:
        before = store.schema
    if before < SCHEMA_VERSION:
        if keep is not None:
            backup(path, keep, key=key)
        with public_faults():
            Database(existing(path), key=key_bytes(key)).close()
    return before


def existing(path: StrPath) -> str:
    """Return the real path of a file. Raises Fault of kind ``settings`` if it does not exist."""
    if not os.path.exists(path):
        raise Fault("settings", os.fspath(path), "there is no such file")
    return os.path.realpath(path)


# --- upkeep of a store while an engine has it open: rekey, backup and restore


def restore_into(
    backup: StrPath,
    path: str,
    store_key: bytes | None,
    *,
    streams: Sequence[str] | None,
    names: Mapping[str, str],
    key: Key | None,
    progress: Progress,
    halt: Halt,
) -> list[WrittenStream]:
    """Verify a backup, and copy streams of it into a store. Blocks."""
    if os.path.isdir(backup):
        raise ConfigError(
            f"{os.fspath(backup)!r} is a folder, which holds a backup of a cluster's streams: restore it on a cluster, "
            "and carry the streams over with feed"
        )
    secret = key_bytes(key)
    with public_faults():
        from pelton.engine.salvage import recount

        found = recount(existing(backup), secret, halt)
    if found:
        raise StoreError(os.fspath(backup), f"it is damaged: {found[0]}; salvage what it holds with pelton.salvage")
    with public_faults():
        if os.path.realpath(backup) == os.path.realpath(path):
            raise Fault("settings", path, "it is its own backup")
        source = ReadOnlyDatabase(os.path.realpath(backup), key=secret)
        try:
            target = Database(path, key=store_key)
            try:
                with translated(path), source.reading():
                    # Its commit must be as durable as any other.
                    target.execute("PRAGMA synchronous=FULL")
                    with target.writing():
                        chosen = _choose_streams(source, target, streams, names)
                        copied = copy_streams(source, target, chosen, names, progress)
                        if not source.is_current:
                            raise Fault("busy", os.fspath(backup), "it was opened while it was read: restore it again")
                return copied
            finally:
                target.close()
        finally:
            source.close()


def _choose_streams(
    source: Database, target: Database, streams: Sequence[str] | None, names: Mapping[str, str]
) -> list[Restored]:
    """Return the streams to copy; raises if the store cannot have a stream of that name or with those subjects."""
    there, here = _configs(source), {name: config for name, (_, config) in _configs(target).items()}
    wanted = list(there) if streams is None else list(dict.fromkeys(streams))
    for name in (*wanted, *names):
        if name not in there:
            raise api_error("JSStreamNotFoundErr", stream=name)
    if left := [name for name in names if name not in wanted]:
        raise ConfigError(f"names: {left[0]!r} is not among the streams that are restored")
    found = []
    for name in wanted:
        number, config = there[name]
        config = _under_new_name(config, names)
        check_restored(config)
        _check_room(config, here)
        here[config.name] = config
        found.append(Restored(number, config.name, encode_config(config)))
    return found


def _configs(database: Database) -> dict[str, tuple[int, StreamConfig]]:
    """Return the streams of a store with their ids, without damaged ones."""
    found = {}
    for number, name, raw in database.execute("SELECT id, name, config FROM streams ORDER BY id").fetchall():
        with suppress(DamagedRowError):
            found[text(name)] = integer(number), decode_config(StreamConfig, raw)
    return found


def _under_new_name(config: StreamConfig, names: Mapping[str, str]) -> StreamConfig:
    """Return a configuration under its new name, if it gets one; then its only subject is that name, too."""
    changed: dict[str, object] = {}
    if config.name in names:
        check_name("stream", names[config.name])
        changed = {"name": names[config.name], "subjects": (names[config.name],) if config.subjects else ()}
    origins = tuple(msgspec.structs.replace(one, name=names.get(one.name, one.name)) for one in config.sources)
    if config.mirror is not None:
        origin = names.get(config.mirror.name, config.mirror.name)
        changed["mirror"] = msgspec.structs.replace(config.mirror, name=origin)
    return msgspec.structs.replace(config, sources=origins, **changed)


def _check_room(config: StreamConfig, others: Mapping[str, StreamConfig]) -> None:
    if config.name in others:
        raise api_error("JSStreamNameExistRestoreFailedErr", stream=config.name)
    taken = (theirs for other in others.values() for theirs in other.subjects)
    if clash_between(config.subjects, taken):
        raise api_error("JSStreamSubjectOverlapErr", stream=config.name)
    check_circle(config, others.values())


# How long a change of the key waits for readers of older snapshots: until then, the old key opens pages of the file.
_FOLDING_S: Final = 10.0
_PAUSE_S: Final = 0.01


class OnlineMaintenance:
    """Upkeep of one open store; ``wake_others`` wakes its other openers, so that they read it again."""

    def __init__(
        self,
        host: Host,
        connections: Connections,
        database: Database,
        committer: Committer,
        transactions: Transactions,
        wake_others: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._host = host
        self._connections = connections
        self._db = database
        self._committer = committer
        self._transactions = transactions
        self._wake_others = wake_others
        self._loop = asyncio.get_running_loop()

    async def rekey(self, key: Key) -> None:
        """Encrypt the store with another key."""
        self._host.door.check_loop()
        new = key_bytes(key)
        if new is None:
            raise ConfigError("rekey needs a key; to decrypt a store, close it and use pelton.rekey(path, key, None)")
        # Staged work waits for the open transaction: inside its block, this call would wait for itself.
        self._host.door.check_outside()
        await self._committer.quiesce()
        await self._transactions.rest()
        with public_faults():
            self._db.check()
            with self._connections.changing_key(new):
                self._db.rekey(new)
                is_folded = self._db.fold_all()
        try:
            deadline = Deadline(self._clock, _FOLDING_S)
            # Whoever reads an older snapshot may do so on this loop.
            while not is_folded and not deadline.is_over:
                await self._clock.sleep(_PAUSE_S)
                is_folded = self._db.fold_all()
        finally:
            self._wake_others()
        await self._host.stage(_nothing, durable=True)

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Copy the store on another thread; if the caller is cancelled, no copy is left, not even a complete one."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("'memory:' has no file to back up: open a file")
        self._host.door.check_loop()
        self._host.door.check_place()

        def work(halt: Halt) -> None:
            backup(settings.path, target, streams=streams, progress=self._telling(progress, halt), key=settings.key)

        await on_thread(work, undo=lambda _: os.unlink(target))

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[WrittenStream]:
        """Copy streams of a backup into the store on another thread."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("'memory:' has no file to restore to: open a file")
        self._host.door.check_loop()
        self._host.door.check_place()
        self._host.door.check_outside()
        path, own = settings.path, settings.key

        def work(halt: Halt) -> list[WrittenStream]:
            told = self._telling(progress, halt)
            return restore_into(source, path, own, streams=streams, names=names, key=key, progress=told, halt=halt)

        try:
            found = await on_thread(work)
        finally:
            # Also if the caller was cancelled just after the work was done.
            self._wake_others()
            self._host.woken()
        # Load the new streams here as well, before the caller uses them, and start their background work.
        await self._host.stage(_nothing, durable=True)
        self._host.woken()
        return found

    def _telling(self, progress: Progress | None, halt: Halt) -> Progress:
        """Return a callback that calls ``progress`` on the loop, and raises when the work should halt."""

        def tell(done: int, total: int) -> None:
            halt.check()
            if progress is not None:
                self._loop.call_soon_threadsafe(progress, done, total)

        return tell


def _nothing() -> None:
    return None
