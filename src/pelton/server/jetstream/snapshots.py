"""Sends archives of streams to clients, in chunks, as many at a time as the client acknowledges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from pelton.api import ApiError, PeltonError, StreamInfo, StreamInfoRequest, StreamState, api_error, rfc3339
from pelton.api.archives import SnapshotRequest, decode_snapshot_request, encode_snapshot_reply
from pelton.api.codec import encode_failure
from pelton.api.events import ClientInfo, SnapshotEnded, SnapshotStarted
from pelton.engine.archives import ArchiveReader
from pelton.runtime import Deadline, Runtime, Signal
from pelton.server.archive.files import ArchiveWriter
from pelton.server.jetstream.link import Send, StoreLink
from pelton.server.jetstream.transfers import ACKS, TransferTable
from pelton.server.ports import Published
from pelton.subjects import is_subject
from pelton.wire import status_block

_KIND: Final = "stream_snapshot"
_VERB: Final = "$JS.API.STREAM.SNAPSHOT."
_CHUNK: Final = (1 << 10, 128 << 10, 1 << 20)
_WINDOW: Final = (1 << 10, 8 << 20, 32 << 20)
_INTEREST_S: Final = 2.0
_STALLED_S: Final = 5.0
_LOOK_S: Final = 0.05


def _clamped(wanted: int, bounds: tuple[int, int, int]) -> int:
    least, default, most = bounds
    return min(max(wanted or default, least), most)


class SnapshotService:
    """Answers ``STREAM.SNAPSHOT``."""

    def __init__(
        self,
        link: StoreLink,
        transfers: TransferTable,
        send: Send,
        answer: Callable[[str, bytes | None, bytes], None],
        runtime: Runtime,
    ) -> None:
        self._link = link
        self._transfers = transfers
        self._send = send
        self._answer = answer
        self._runtime = runtime

    def take(self, stream: str, message: Published) -> bool:
        """Begin to send an archive of a stream."""
        self._runtime.spawn(self._begin(stream, message), "pelton begins an archive")
        return True

    async def _begin(self, stream: str, message: Published) -> None:
        sending: _Sending | None = None
        try:
            request = decode_snapshot_request(message.data)
            if not is_subject(request.deliver_subject):
                raise api_error("JSSnapshotDeliverSubjectInvalidErr", stream=stream)
            await self._link.storing.up_to_here()
            info = await self._link.engine.ask(StreamInfoRequest(name=stream))
            sending = _Sending(self._link, self._send, self._runtime, request, info, self._link.about(message.client))
            await sending.prepare()
            sending.subject = self._transfers.new_subject(ACKS, stream)
            self._transfers.begin(sending.subject, sending, sending.run)
        except PeltonError as error:
            if sending is not None:
                sending.close()
            shown = error if isinstance(error, ApiError) else api_error("JSStreamSnapshotErrF", err=str(error))
            body, is_refused = encode_failure(_KIND, shown), True
        else:
            body, is_refused = encode_snapshot_reply(info, sending.state), False
        self._answer(message.reply, None, body)
        self._link.audit(message, f"{_VERB}{stream}", body, is_refused=is_refused)


class _TransferError(Exception):
    """Why an archive cannot be sent to its end; ``code`` is the status that the client gets."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Sending:
    """One archive that is sent."""

    def __init__(
        self,
        link: StoreLink,
        send: Send,
        runtime: Runtime,
        request: SnapshotRequest,
        info: StreamInfo,
        client: ClientInfo,
    ) -> None:
        self._link = link
        self._send = send
        self._clock = runtime.clock
        self._request = request
        self._info = info
        self._client = client
        self.subject = ""
        self.state: StreamState = info.state
        self._size = _clamped(request.chunk_size, _CHUNK)
        self._room = max(_clamped(request.window_size, _WINDOW), self._size) // self._size
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
        return self._send(subject, subject, reply, block, data)

    async def _find_interest(self) -> None:
        """Wait for a subscription to the deliver subject; what only matches it is taken after a while."""
        deadline, subject = Deadline(self._clock, _INTEREST_S), self._request.deliver_subject
        while not self._link.has_own_subscription(subject) and not deadline.is_over:
            await self._clock.sleep(_LOOK_S)
        if not self._link.receives(subject):
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
