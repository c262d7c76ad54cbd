"""Archives of streams, to clients and from them: ``STREAM.SNAPSHOT`` and ``STREAM.RESTORE``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import IO, Final

from msgspec.structs import replace

from pelton.api import (
    ApiError,
    ConfigError,
    PeltonError,
    StreamConfig,
    StreamCreate,
    StreamInfo,
    StreamInfoRequest,
    StreamState,
    api_error,
    rfc3339,
)
from pelton.api.codec import (
    SnapshotRequest,
    decode_restore_request,
    decode_snapshot_request,
    encode_error,
    encode_failure,
    encode_reply,
    encode_restore_reply,
    encode_snapshot_reply,
)
from pelton.api.events import ClientInfo, RestoreEnded, RestoreStarted, SnapshotEnded, SnapshotStarted
from pelton.engine.archives import ArchivedStream, ArchiveReader, RestoreFolder
from pelton.engine.session.catalogue import most_bytes
from pelton.runtime import Deadline, Halt, Signal
from pelton.server.archive import ArchiveSource, ArchiveWriter
from pelton.server.connection import Published
from pelton.server.store_link import ACKS, CHUNKS, StoreLink, as_api_error
from pelton.subjects import is_subject
from pelton.wire import status_block

_SNAPSHOT_KIND: Final = "stream_snapshot"
_SNAPSHOT_VERB: Final = "$JS.API.STREAM.SNAPSHOT."
_CHUNK: Final = (1 << 10, 128 << 10, 1 << 20)
_WINDOW: Final = (1 << 10, 8 << 20, 32 << 20)
_INTEREST_S: Final = 2.0
_STALLED_S: Final = 5.0
_LOOK_S: Final = 0.05


def _within(wanted: int, bounds: tuple[int, int, int]) -> int:
    least, default, most = bounds
    return min(max(wanted or default, least), most)


async def begin_snapshot(link: StoreLink, stream: str, message: Published) -> None:
    """Begin to send an archive of a stream, and answer ``STREAM.SNAPSHOT``."""
    sending: _Sending | None = None
    try:
        request = decode_snapshot_request(message.data)
        if not is_subject(request.deliver_subject):
            raise api_error("JSSnapshotDeliverSubjectInvalidErr", stream=stream)
        await link.storing.up_to_here()
        info = await link.engine.ask(StreamInfoRequest(name=stream))
        sending = _Sending(link, request, info, link.about(message.client))
        await sending.prepare()
        sending.subject = link.transfers.new_subject(ACKS, stream)
        link.transfers.begin(sending.subject, sending, sending.run)
    except PeltonError as error:
        if sending is not None:
            sending.close()
        shown = error if isinstance(error, ApiError) else api_error("JSStreamSnapshotErrF", err=str(error))
        body, is_refused = encode_failure(_SNAPSHOT_KIND, shown), True
    else:
        body, is_refused = encode_snapshot_reply(info, sending.state), False
    link.account.answer(message.reply, None, body)
    link.audit(message, f"{_SNAPSHOT_VERB}{stream}", body, is_refused=is_refused)


class _TransferError(Exception):
    """Why an archive cannot be sent to its end; ``code`` is the status that the client gets."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Sending:
    """One archive that is sent."""

    def __init__(self, link: StoreLink, request: SnapshotRequest, info: StreamInfo, client: ClientInfo) -> None:
        self._link = link
        self._clock = link.runtime.clock
        self._request = request
        self._info = info
        self._client = client
        self.subject = ""
        self.state: StreamState = info.state
        self._size = _within(request.chunk_size, _CHUNK)
        self._room = max(_within(request.window_size, _WINDOW), self._size) // self._size
        self._acked = Signal()
        self._writer = ArchiveWriter()
        self._held = b""
        self._sent = 0
        self._reader: ArchiveReader | None = None

    async def prepare(self) -> None:
        """Collect what comes before the messages. Raises PeltonError."""
        info, archives = self._info, self._link.archives
        name, state = info.config.name, info.state
        wanted = not self._request.no_consumers
        consumers = await archives.consumers(name, state.last_seq) if wanted else []
        self.state = replace(state, consumer_count=len(consumers))
        self._reader = archives.reader(name, info.created, state.first_seq, state.last_seq)
        self._held = self._writer.opening(self.state, consumers)

    def take(self, message: Published) -> None:
        """Note that the client has taken a chunk."""
        self._room += 1
        self._acked.notify()

    def close(self) -> None:
        """Close its connection to the store. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    async def run(self) -> None:
        """Send everything, and tell how it ended."""
        stream, begun, error = self._info.config.name, self._clock.now(), ""
        assert self._reader is not None
        try:
            await self._link.archives.advise(SnapshotStarted(stream=stream, state=self.state, client=self._client))
            await self._find_interest()
            while (messages := await asyncio.to_thread(self._reader.read)) is not None:
                self._held += await asyncio.to_thread(self._writer.messages, messages)
                await self._send_full()
            self._held += self._writer.end()
            await self._send_full()
            if self._held:
                self._deliver("", None, self._held)
            self._deliver("", status_block(204) if self._sent else None, b"")
        except _TransferError as failed:
            error = str(failed).lower()
            self._deliver("", status_block(failed.code, str(failed)), b"")
        except PeltonError as failed:
            error = str(failed)
            self._deliver("", status_block(500, error), b"")
        finally:
            self.close()
        ended = rfc3339(self._clock.now())
        event = SnapshotEnded(stream=stream, start=rfc3339(begun), end=ended, client=self._client, error=error)
        await self._link.archives.advise(event)

    def _deliver(self, reply: str, block: bytes | None, data: bytes) -> int:
        subject = self._request.deliver_subject
        return self._link.account.send(subject, subject, reply, block, data)

    async def _find_interest(self) -> None:
        """Wait for a subscription to the deliver subject; what only matches it is taken after a while."""
        deadline, subject = Deadline(self._clock, _INTEREST_S), self._request.deliver_subject
        while not self._link.has_own_subscription(subject) and not deadline.is_over:
            await self._clock.sleep(_LOOK_S)
        if not self._link.account.router.has_subscriber(subject):
            raise _TransferError(408, "No Interest")

    async def _send_full(self) -> None:
        """Send as many whole chunks as there are."""
        at, size = 0, self._size
        while len(self._held) - at >= size:
            seen = self._acked.generation
            if not self._room:
                if await self._acked.wait_at_most(self._clock, _STALLED_S, seen) == seen:
                    raise _TransferError(408, "No Flow Response")
                continue
            self._sent += 1
            self._room -= 1
            if not self._deliver(f"{self.subject}.{size}.{self._sent}", None, self._held[at : at + size]):
                raise _TransferError(408, "No Interest")
            at += size
        self._held = self._held[at:]


# --- takes archives of streams from clients, in chunks, and restores them: all of a stream, or nothing

_RESTORE_KIND: Final = "stream_restore"
_RESTORE_VERB: Final = "$JS.API.STREAM.RESTORE."
_SILENT_S: Final = 5.0
# An archive has names and consumers besides, and may be hard to compress.
_BESIDES: Final = 1 << 20
# An archive and the stream that it becomes are on the disk together; three quarters of it is what nats-server may use.
_OF_FREE: Final = (3, 8)


async def begin_restore(link: StoreLink, stream: str, message: Published) -> None:
    """Begin to take an archive of a stream, and answer ``STREAM.RESTORE``."""
    config = StreamConfig(name=stream)
    try:
        request = decode_restore_request(message.data)
        # Only here may the configuration leave out the name.
        config = replace(request.config, name=request.config.name or stream)
        if config.name != stream:
            raise api_error("JSStreamMismatchErr", stream=stream)
        config = await link.archives.check(config)
        subject = link.transfers.new_subject(CHUNKS, stream)
        receiving = _Receiving(link, config, message, subject)
        link.transfers.begin(subject, receiving, receiving.run)
    except (PeltonError, OSError) as error:
        body = encode_failure(_RESTORE_KIND, _to_api_error(error, config))
        link.account.answer(message.reply, None, body)
        link.audit(message, f"{_RESTORE_VERB}{stream}", body, is_refused=True)


def _to_api_error(error: Exception, config: StreamConfig) -> ApiError:
    """Return what a client is told; of a configuration the same as by a create."""
    if isinstance(error, ApiError | ConfigError):
        return as_api_error(StreamCreate(config=config), error)
    return api_error("JSStreamRestoreErrF", err=str(error))


class _Receiving:
    """One archive that is received, on a subject of its own."""

    def __init__(self, link: StoreLink, config: StreamConfig, request: Published, subject: str) -> None:
        self._link = link
        self._runtime = link.runtime
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
            self._link.account.answer(message.reply, None, b"")

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
                self._tell_begin(encode_failure(_RESTORE_KIND, _to_api_error(error, self._config)), is_refused=True)
                return
            self._tell_begin(encode_restore_reply(self._subject), is_refused=False)
            await self._wait_for_all()
            if self._last is not None:
                self._link.account.answer(self._last.reply, None, await self._restore(self._folder))
        finally:
            if self._folder is not None:
                self._folder.remove()
        ended = rfc3339(self._runtime.clock.now())
        event = RestoreEnded(stream=stream, start=rfc3339(begun), end=ended, bytes=self._bytes, client=client)
        await self._link.archives.advise(event)

    def _tell_begin(self, body: bytes, *, is_refused: bool) -> None:
        self._link.account.answer(self._request.reply, None, body)
        self._link.audit(self._request, f"{_RESTORE_VERB}{self._config.name}", body, is_refused=is_refused)

    async def _wait_for_all(self) -> None:
        """Wait for the last chunk, or for the silence of the client."""
        while self._last is None:
            seen = self._told.generation
            if await self._told.wait_at_most(self._runtime.clock, _SILENT_S, seen) == seen:
                return

    async def _restore(self, folder: RestoreFolder) -> bytes:
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
            return encode_error(StreamCreate, _to_api_error(error, self._config))
        self._link.interest.look_at_pushes()
        # nats-server does not say here from where the stream takes.
        return encode_reply(StreamCreate, replace(info, mirror=None, sources=[]))

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
