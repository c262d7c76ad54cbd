"""Takes archives of streams from clients, in chunks, and restores them: all of a stream, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, Final

from msgspec.structs import replace

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
from pelton.api.events import RestoreEnded, RestoreStarted
from pelton.engine.archives import ArchivedStream, RestoreFolder
from pelton.engine.session.account import most_bytes
from pelton.runtime import Halt, Runtime, Signal
from pelton.server.archive.files import ArchiveSource
from pelton.server.jetstream.link import StoreLink
from pelton.server.jetstream.transfers import CHUNKS, TransferTable
from pelton.server.jetstream.verbs import as_api_error
from pelton.server.ports import Published

_KIND: Final = "stream_restore"
_VERB: Final = "$JS.API.STREAM.RESTORE."
_SILENT_S: Final = 5.0
# An archive has names and consumers besides, and may be hard to compress.
_BESIDES: Final = 1 << 20
# An archive and the stream that it becomes are on the disk together; three quarters of it is what nats-server may use.
_OF_FREE: Final = (3, 8)


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
        config = StreamConfig(name=stream)
        try:
            request = decode_restore_request(message.data)
            # Only here may the configuration leave out the name.
            config = replace(request.config, name=request.config.name or stream)
            if config.name != stream:
                raise api_error("JSStreamMismatchErr", stream=stream)
            config = await self._link.archives.check(config)
            subject = self._transfers.new_subject(CHUNKS, stream)
            receiving = _Receiving(self._link, self._answer, self._runtime, config, message, subject)
            self._transfers.begin(subject, receiving, receiving.run)
        except (PeltonError, OSError) as error:
            body = encode_failure(_KIND, _shown(error, config))
            self._answer(message.reply, None, body)
            self._link.audit(message, f"{_VERB}{stream}", body, is_refused=True)


def _shown(error: Exception, config: StreamConfig) -> ApiError:
    """Return what a client is told; of a configuration the same as by a create."""
    if isinstance(error, ApiError | ConfigError):
        return as_api_error(StreamCreate(config=config), error)
    return api_error("JSStreamRestoreErrF", err=str(error))


class _Receiving:
    """One archive that is received, on a subject of its own."""

    def __init__(
        self,
        link: StoreLink,
        answer: Callable[[str, bytes | None, bytes], None],
        runtime: Runtime,
        config: StreamConfig,
        request: Published,
        subject: str,
    ) -> None:
        self._link = link
        self._answer = answer
        self._runtime = runtime
        self._config = config
        self._request = request
        self._subject = subject
        self._folder: RestoreFolder | None = None
        self._bytes = 0
        # What is unpacked is counted, too: an archive that is larger than the account allows is not even read.
        most = most_bytes(link.archives.limits, config.storage)
        free = link.archives.free_bytes() * _OF_FREE[0] // _OF_FREE[1]
        self._most = free if most < 0 else min(free, 2 * most + _BESIDES)
        self._failure: OSError | PeltonError | None = None
        self._last: Published | None = None
        self._told = Signal()

    def take(self, message: Published) -> None:
        """Take a chunk; an empty one is the last."""
        if self._last is not None or self._folder is None:
            return
        if not message.data:
            self._last = message
        elif self._failure is None:
            self._bytes += len(message.data)
            if 0 <= self._most < self._bytes:
                self._failure = api_error("JSAccountResourcesExceededErr", stream=self._config.name)
            try:
                self._folder.archive.write(message.data)
            except OSError as failure:
                # It is told at the end, as any failure is.
                self._failure = failure
        self._told.notify()
        if message.data:
            self._answer(message.reply, None, b"")

    async def run(self) -> None:
        """Say where the archive goes, wait for all of it, restore it, and tell how it ended.

        A client that is silent is given up. Whatever happens, nothing is left.
        """
        begun, stream, client = self._runtime.clock.now(), self._config.name, self._link.about(self._request.client)
        try:
            try:
                self._folder = self._link.archives.new_folder(self._runtime.ids.new())
                await self._link.archives.advise(RestoreStarted(stream=stream, client=client))
            except (PeltonError, OSError) as error:
                self._begun(encode_failure(_KIND, _shown(error, self._config)), is_refused=True)
                return
            self._begun(encode_restore_reply(self._subject), is_refused=False)
            await self._received()
            if self._last is not None:
                self._answer(self._last.reply, None, await self._restored(self._folder))
        finally:
            if self._folder is not None:
                self._folder.remove()
        ended = rfc3339(self._runtime.clock.now())
        event = RestoreEnded(stream=stream, start=rfc3339(begun), end=ended, bytes=self._bytes, client=client)
        await self._link.archives.advise(event)

    def _begun(self, body: bytes, *, is_refused: bool) -> None:
        self._answer(self._request.reply, None, body)
        self._link.audit(self._request, f"{_VERB}{self._config.name}", body, is_refused=is_refused)

    async def _received(self) -> None:
        """Wait for the last chunk, or for the silence of the client."""
        while self._last is None:
            seen = self._told.generation
            if await self._told.wait_at_most(self._runtime.clock, _SILENT_S, seen) == seen:
                return

    async def _restored(self, folder: RestoreFolder) -> bytes:
        """Return the answer to the last chunk."""
        try:
            if self._failure is not None:
                raise self._failure
            folder.archive.seek(0)
            await self._link.archives.restore(
                self._config, folder, lambda origins, halt: self._read(folder.archive, origins, halt)
            )
            info = await self._link.engine.ask(StreamInfoRequest(name=self._config.name))
        except (PeltonError, OSError) as error:
            return encode_error(StreamCreate, _shown(error, self._config))
        self._link.interest.look_at_pushes()
        return encode_reply(StreamCreate, info)

    def _read(self, file: IO[bytes], origins: Mapping[str, str], halt: Halt) -> ArchivedStream:
        source = ArchiveSource(file, self._config.name, self._most, halt.check)
        state = source.state
        return ArchivedStream(
            self._config,
            state.first_seq,
            state.last_seq,
            source.consumers(),
            source.messages(),
            origins,
            self._link.archives.limits,
        )
