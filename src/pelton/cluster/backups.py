"""Backups of streams of a cluster, made and read by its servers, in the format of the ``nats`` command.

A backup is a folder with one subfolder per stream: ``backup.json``, its configuration and state, and ``stream.tar.s2``,
the server's opaque data. Neither operation can be continued after a lost connection: start it again. A subfolder gets
its stream's name only when it is complete and on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pelton.api import ConfigError, ServerTimeoutError, api_error
from pelton.api.backend import Progress
from pelton.api.build import check_name
from pelton.api.errors import from_reply
from pelton.cluster.connection import Answer, Connection, Interrupted
from pelton.runtime import within

_DESCRIPTION: Final = "backup.json"
_DATA: Final = "stream.tar.s2"
_CHUNK: Final = 128 * 1024


async def back_up(connection: Connection, streams: Sequence[str], target: str, told: Progress) -> None:
    """Write one folder per stream below ``target``; ``told`` is called with bytes received and their estimated total.

    Raises StreamNotFoundError, ConfigError if the target exists, ServerTimeoutError.
    """
    _check_free(target)
    unfinished = f"{target}-unfinished"
    _forget(unfinished)
    try:
        # Not readable by others, whatever the umask.
        os.mkdir(unfinished, 0o700)
    except OSError as error:
        raise ConfigError(
            f"the folder {unfinished!r} cannot be made ({error.strerror}): remove it, or name another"
        ) from error
    try:
        for stream in streams:
            os.mkdir(os.path.join(unfinished, stream))
            await _snapshot(connection, stream, os.path.join(unfinished, stream), told)
        os.replace(unfinished, target)
    except BaseException:
        _forget(unfinished)
        raise


def _forget(unfinished: str) -> None:
    """Remove what an unfinished backup left, and nothing else."""
    if os.path.islink(unfinished) or not os.path.isdir(unfinished):
        return
    for stream in os.listdir(unfinished):
        folder = os.path.join(unfinished, stream)
        if os.path.islink(folder):
            continue
        for name in (_DESCRIPTION, _DATA):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
        with suppress(OSError):
            os.rmdir(folder)
    with suppress(OSError):
        os.rmdir(unfinished)


def _check_free(target: str) -> None:
    if os.path.lexists(target):
        raise ConfigError(f"{target!r} exists already: name another folder, or remove it")


async def _snapshot(connection: Connection, stream: str, folder: str, told: Progress) -> None:
    client, inbox = await connection.client(), connection.new_inbox()
    parts: asyncio.Queue[tuple[str, Answer] | None] = asyncio.Queue()
    lost = lambda: parts.put_nowait(None)  # noqa: E731  # it has to be the same when it is removed
    connection.on_lost.append(lost)
    listening = await client.listen(
        inbox, lambda subject, reply, block, data: parts.put_nowait((reply, Answer(block, data)))
    )
    try:
        reply = await _ask(connection, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, "chunk_size": _CHUNK})
        total, done = int(reply["state"]["bytes"]), 0
        with _data(folder, "wb") as file:
            while (part := await _next(connection, stream, parts)) is not None:
                await asyncio.to_thread(file.write, part)
                done += len(part)
                told(done, max(total, done))
            await asyncio.to_thread(_sync, file)
        await asyncio.to_thread(_describe, folder, reply)
    finally:
        connection.on_lost.remove(lost)
        await listening.unsubscribe()


async def _next(connection: Connection, stream: str, parts: asyncio.Queue[tuple[str, Answer] | None]) -> bytes | None:
    """Return the next part, or None after the last one."""
    try:
        part = await within(connection.clock, connection.settings.patience, parts.get())
    except TimeoutError:
        raise connection.no_answer() from None
    if part is None:
        raise _broken(connection, f"the backup of stream {stream!r}")
    reply, answer = part
    if reply:
        await connection.tell(reply, b"")
    if answer.status >= 400:
        raise api_error("JSStreamSnapshotErrF", stream=stream, err=answer.text)
    return answer.data or None


async def restore(
    connection: Connection, source: str, streams: Sequence[str] | None, names: Mapping[str, str], told: Progress
) -> list[str]:
    """Make streams from their folders below ``source``; return their names.

    Raises ConfigError if it is not such a folder, ApiError 10130 if a name is taken, ServerTimeoutError.
    """
    wanted = _names_to_restore(source, streams, names)
    return [await _restore_stream(connection, os.path.join(source, name), names.get(name, ""), told) for name in wanted]


def _names_to_restore(source: str, streams: Sequence[str] | None, names: Mapping[str, str]) -> list[str]:
    if not os.path.isdir(source):
        raise ConfigError(
            f"{source!r} is not a folder with backups of a cluster's streams; for a store file, "
            "open it with pelton.open and carry its streams over with feed"
        )
    wanted = sorted(os.listdir(source)) if streams is None else list(streams)
    for name in (*wanted, *names):
        if name not in wanted or not os.path.isfile(os.path.join(source, name, _DESCRIPTION)):
            raise api_error("JSStreamNotFoundErr", stream=name)
    return wanted


async def _restore_stream(connection: Connection, folder: str, new_name: str, told: Progress) -> str:
    about = _about(folder)
    config = about["config"]
    if new_name:
        check_name("stream", new_name)
        config |= {"name": new_name, **({"subjects": [new_name]} if config.get("subjects") else {})}
    name = str(config["name"])
    reply = await _ask(connection, f"STREAM.RESTORE.{name}", {"config": config, "state": about["state"]})
    into = str(reply["deliver_subject"])
    with _data(folder, "rb") as file:
        total = os.fstat(file.fileno()).st_size
        while part := await asyncio.to_thread(file.read, _CHUNK):
            await _send(connection, name, into, part)
            told(file.tell(), total)
    _reply_of(await _send(connection, name, into, b""), name)
    return name


async def _send(connection: Connection, stream: str, subject: str, data: bytes) -> bytes:
    try:
        return (await connection.ask(subject, data)).data
    except Interrupted:
        raise _broken(connection, f"the restoring of stream {stream!r}") from None


async def _ask(connection: Connection, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    stream = verb.rpartition(".")[2]
    subject = f"{connection.settings.api_prefix}.{verb}"
    return _reply_of(await _send(connection, stream, subject, json.dumps(body).encode()), stream)


def _reply_of(data: bytes, stream: str) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(data or b"{}")
    if error := reply.get("error"):
        raise from_reply(error["code"], error.get("err_code", 0), error.get("description", ""), stream=stream)
    return reply


def _broken(connection: Connection, what: str) -> ServerTimeoutError:
    return ServerTimeoutError(connection.settings.name, f"the connection was lost during {what}; start it again")


def _data(folder: str, mode: str) -> Any:
    return open(os.path.join(folder, _DATA), mode)


def _about(folder: str) -> dict[str, Any]:
    with open(os.path.join(folder, _DESCRIPTION)) as text:
        about: dict[str, Any] = json.load(text)
    return about


def _describe(folder: str, about: dict[str, Any]) -> None:
    with open(os.path.join(folder, _DESCRIPTION), "w") as text:
        json.dump(about, text)
        _sync(text)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
