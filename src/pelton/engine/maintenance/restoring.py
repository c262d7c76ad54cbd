"""Restores streams of a backup into a store that is in use, under their own names or new ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from pelton.api import ConfigError, StoreError, StreamConfig, api_error
from pelton.api.backend import Progress, StrPath
from pelton.api.build import check_name
from pelton.api.keys import Key, key_bytes
from pelton.engine.maintenance.recount import recount
from pelton.engine.maintenance.upkeep import existing, public_faults
from pelton.engine.session.configs import decode_config, encode_config
from pelton.engine.verbs.streams import check_restored
from pelton.runtime import Halt
from pelton.sourcing import check_circle
from pelton.storage import DamagedRowError, Database, Fault, integer, text, translated
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
