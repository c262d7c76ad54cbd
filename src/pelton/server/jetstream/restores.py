"""Takes archives of streams from clients, in chunks, and restores them: all of a stream, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import IO, Final

from pelton.api import (
    ApiError,
    ConfigError,
    PeltonError,
    StreamConfig,
    StreamCreate,
    StreamInfoRequest,
    api_error,
    rfc3339,
)
from pelton.api.archives import decode_restore_request, encode_restore_reply
from pelton.api.codec import encode_error, encode_failure, encode_reply
from pelton.api.events import ClientInfo, RestoreEnded, RestoreStarted
from pelton.engine.archives import ArchivedStream
from pelton.runtime import Runtime, Signal
from pelton.server.archive.reader import ArchiveSource
from pelton.server.jetstream.clients import info_of
from pelton.server.jetstream.link import StoreLink
from pelton.server.jetstream.transfers import CHUNKS, TransferTable
from pelton.server.ports import Published

_KIND: Final = "stream_restore"
_SILENT_S: Final = 5.0
_FILE: Final = "archive"
# An archive has names and consumers besides, and may be hard to compress.
_BESIDES: Final = 1 << 20


class RestoreService:
    """Answers ``STREAM.RESTORE``."""

    def __init__(
        self,
        link: StoreLink,
        transfers: TransferTable,
        answer: Callable[[str, bytes | None, bytes], None],
        runtime: Runtime,
    ) -> None:
        self._link = link
        self._transfers = transfers
        self._answer = answer
        self._runtime = runtime

    def take(self, stream: str, message: Published) -> bool:
        """Begin to take an archive of a stream."""
        self._runtime.spawn(self._begin(stream, message), "pelton begins to restore")
        return True

    async def _begin(self, stream: str, message: Published) -> None:
        try:
            request = decode_restore_request(message.data)
            if request.config.name != stream:
                raise api_error("JSStreamMismatchErr", stream=stream)
            config = await self._link.archives.check(request.config)
            receiving = _Receiving(self._link, self._answer, self._runtime, config, info_of(message.client))
        except (PeltonError, OSError) as error:
            self._answer(message.reply, None, encode_failure(_KIND, _shown(error)))
            return
        await self._link.archives.advise(RestoreStarted(stream=stream, client=info_of(message.client)))
        subject = self._transfers.new_subject(CHUNKS, stream)
        self._transfers.begin(subject, receiving, receiving.run)
        self._answer(message.reply, None, encode_restore_reply(subject))


def _shown(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        return api_error("JSStreamInvalidConfigF", err=str(error))
    return api_error("JSStreamRestoreErrF", err=str(error))


class _Receiving:
    """One archive that is received."""

    def __init__(
        self,
        link: StoreLink,
        answer: Callable[[str, bytes | None, bytes], None],
        runtime: Runtime,
        config: StreamConfig,
        client: ClientInfo,
    ) -> None:
        self._link = link
        self._answer = answer
        self._clock = runtime.clock
        self._config = config
        self._client = client
        self._folder = link.archives.new_folder(runtime.ids.new())
        self._file: IO[bytes] = open(os.path.join(self._folder, _FILE), "w+b")  # noqa: SIM115  # run() closes it
        self._bytes = 0
        self._most = link.archives.most_bytes(config)
        self._failure: OSError | PeltonError | None = None
        self._last: Published | None = None
        self._told = Signal()

    def take(self, message: Published) -> None:
        """Take a chunk; an empty one is the last."""
        if self._last is not None:
            return
        if not message.data:
            self._last = message
        elif self._failure is None:
            self._bytes += len(message.data)
            if self._most >= 0 and self._bytes > 2 * self._most + _BESIDES:
                self._failure = api_error("JSAccountResourcesExceededErr", stream=self._config.name)
            try:
                self._file.write(message.data)
            except OSError as failure:
                # It is told at the end, as any failure is.
                self._failure = failure
        self._told.notify()
        if message.data:
            self._answer(message.reply, None, b"")

    async def run(self) -> None:
        """Wait for everything, restore it, and tell how it ended; a client that is silent is given up."""
        begun, stream = self._clock.now(), self._config.name
        try:
            while self._last is None:
                seen = self._told.generation
                if await self._told.wait_at_most(self._clock, _SILENT_S, seen) == seen:
                    break
            if self._last is not None:
                self._answer(self._last.reply, None, await self._restored())
        finally:
            self._file.close()
            self._link.archives.remove_folder(self._folder)
        ended = rfc3339(self._clock.now())
        event = RestoreEnded(stream=stream, start=rfc3339(begun), end=ended, bytes=self._bytes, client=self._client)
        await self._link.archives.advise(event)

    async def _restored(self) -> bytes:
        """Return the answer to the last chunk."""
        try:
            if self._failure is not None:
                raise self._failure
            self._file.seek(0)
            await self._link.archives.restore(self._config, self._folder, self._read)
            info = await self._link.engine.call(StreamInfoRequest(name=self._config.name))
        except (PeltonError, OSError) as error:
            return encode_error(StreamCreate, _shown(error))
        self._link.interest.look_at_pushes()
        return encode_reply(StreamCreate, info)

    def _read(self, origins: Mapping[str, str]) -> ArchivedStream:
        source = ArchiveSource(self._file, self._config.name)
        state = source.state
        return ArchivedStream(
            self._config, state.first_seq, state.last_seq, source.consumers, source.messages(), origins, self._most
        )
