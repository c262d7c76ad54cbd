"""Upkeep of a store while an engine has it open: rekey, backup and restore."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from pelton.api import ConfigError, StoreError, StreamConfig, api_error
from pelton.api.backend import Progress, StrPath
from pelton.api.build import check_name
from pelton.api.keys import Key, key_bytes
from pelton.engine.connections import Connections
from pelton.engine.host import Host
from pelton.engine.maintenance.recount import recount
from pelton.engine.maintenance.upkeep import backup, existing, public_faults
from pelton.engine.session.configs import decode_config, encode_config
from pelton.engine.transactions.transactions import Transactions
from pelton.engine.verbs.streams import check_restored
from pelton.runtime import Halt, on_thread
from pelton.sourcing import check_circle
from pelton.storage import Committer, DamagedRowError, Database, Fault, integer, text, translated
from pelton.storage.copies import Restored, copy_streams
from pelton.subjects import clash_between


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
) -> list[str]:
    """Verify a backup, copy streams of it into a store, and return their names there. Blocks."""
    if os.path.isdir(backup):
        raise ConfigError(
            f"{os.fspath(backup)!r} is a folder, which holds a backup of a cluster's streams: restore it on a cluster, "
            "and carry the streams over with feed"
        )
    secret = key_bytes(key)
    with public_faults():
        found = recount(existing(backup), secret, halt)
    if found:
        raise StoreError(os.fspath(backup), f"it is damaged: {found[0]}; salvage what it holds with pelton.salvage")
    with public_faults():
        if os.path.realpath(backup) == os.path.realpath(path):
            raise Fault("settings", path, "it is its own backup")
        source = Database(os.path.realpath(backup), key=secret)
        try:
            target = Database(path, key=store_key)
            try:
                with translated(path), source.reading():
                    # Its commit must be as durable as any other.
                    target.execute("PRAGMA synchronous=FULL")
                    with target.writing():
                        chosen = _chosen(source, target, streams, names)
                        copy_streams(source, target, chosen, names, progress)
                return [stream.name for stream in chosen]
            finally:
                target.close()
        finally:
            source.close()


def _chosen(
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
        config = _renamed(config, names)
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


def _renamed(config: StreamConfig, names: Mapping[str, str]) -> StreamConfig:
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
    ) -> None:
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
            with self._connections.rekeyed(new):
                self._db.rekey(new)
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
    ) -> list[str]:
        """Copy streams of a backup into the store on another thread."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("'memory:' has no file to restore to: open a file")
        self._host.door.check_loop()
        self._host.door.check_place()
        self._host.door.check_outside()
        path, own = settings.path, settings.key

        def work(halt: Halt) -> list[str]:
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
