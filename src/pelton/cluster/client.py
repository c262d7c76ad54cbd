"""nats-py's client, with what it lacks: complete headers, a fast way to send, and no silent losses.

Nats-py 2.16 can lose its connection without noticing, or wait for it forever:

- a cancelled flush leaves its future behind; the reply to it then raises in the read loop, which ends, and nothing
  is read any more until a ping fails minutes later. Here a reply that no caller waits for is ignored, and a read
  loop that ends while the connection seems to be up counts as a lost connection.
- a flush that is cancelled as its reply comes goes on before Python 3.12, and so does connecting, also again: a loop
  that ends then waits for ever. Here they end.
- a flush overtakes data that waits to be sent: the ping is written at once, a subscription before it later. The
  reply then does not confirm the subscription. Here a ping is queued with the rest.
- a lost connection is closed by sending the remaining data, which a hung server never reads, and a dead one answers
  with an error that interrupts the closing. Here it is cut.
- closing after a failed TLS handshake waits for an end that never comes. Here for a second only.
- a server without TLS is used in plain text, even if the address has ``tls://``. Here the credentials are not sent.

All of it relies on methods of nats-py that are not public: ``tests/cluster/test_client.py`` lists them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import nats.aio.client
import nats.errors
from nats.aio.transport import TcpTransport

from pelton.runtime import interruptible

# Like nats-py's own, these are seconds of the event loop: no other clock is available here.
_CLOSE_S: Final = 2.0
_LOOK_S: Final = 1.0
_FINISH_S: Final = 1
# With more at once, a single write blocks the event loop for too long.
_MOST_PENDING: Final = 1 << 20


Dial = Callable[[], socket.socket]
"""Returns a socket to a server in this process. Raises OSError."""


class Block(dict[str, str]):
    """Headers as received, undecoded: nats-py's own decoding keeps one value per name."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self.block = block


class NoTlsError(nats.errors.Error):
    """The server offers no TLS, and the address requires it."""

    def __str__(self) -> str:
        return "the server offers no TLS, and the address requires it: write nats:// to connect without"


class _Transport(TcpTransport):
    """TCP with or without TLS, whose closing is bounded in time: after a failed handshake it never ends.

    With ``dial`` it is a socket that leads to a server in this process.
    """

    def __init__(self, on_heard: Callable[[], None], dial: Dial | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nats-py leaves it so
        self._on_heard = on_heard
        self._dial = dial

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        if self._dial is None:
            await super().connect(uri, buffer_size, connect_timeout)
            return
        reader, writer = await asyncio.open_connection(sock=self._dial(), limit=buffer_size)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    def __bool__(self) -> bool:
        return True

    async def readline(self) -> bytes:
        """Return what a server says first."""
        line: bytes = await super().readline()  # type: ignore[no-untyped-call]  # nats-py leaves it so
        self._on_heard()
        return line

    def abort(self) -> None:
        """Close it now, without sending the remaining data."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]  # nats-py leaves it so


Take = Callable[[str, str, bytes | None, bytes], None]
"""The handler of an incoming message: subject, reply subject, header block, data."""


class NatsClient(nats.aio.client.Client):
    """A connection to one server of a cluster at a time."""

    def __init__(self, *, insists_on_tls: bool, dial: Dial | None = None) -> None:
        super().__init__()
        self._insists_on_tls = insists_on_tls
        self._dial = dial
        self._takes: dict[int, Take] = {}
        self.on_heard: Callable[[], None] = lambda: None
        """Called when a server has said its first word."""

    def send(self, subject: str, reply: str, data: bytes, block: bytes | None) -> None:
        """Send a message without waiting for room (:meth:`has_room`); the subject holds no white space."""
        if block is None:
            size = len(data)
            command = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), size, data)
        else:
            size = len(block) + len(data)
            names = (subject.encode(), reply.encode(), len(block), size)
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (*names, block, data)
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        self._queue_up(command)

    def _queue_up(self, command: bytes) -> None:
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    @property
    def has_room(self) -> bool:
        """Whether little enough data waits to be sent to add more."""
        return bool(self._pending_data_size <= _MOST_PENDING)

    async def room(self) -> None:
        """Wait until there is room again, or the connection is lost."""
        while self._flush_queue is not None and self.is_connected and not self.has_room:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(flushed)
            # The flusher may be replaced in the meantime, and leave this one behind.
            await asyncio.wait([flushed], timeout=_LOOK_S)

    async def listen(self, subject: str, take: Take, queue: str = "") -> Any:
        """Subscribe; each message is handled as it is read, without its own queue and task."""
        self._takes[self._sid + 1] = take
        # nats-py allows less than servers do, such as no "*" within a token; subjects were checked before.
        self._skip_subject_validation = True
        return await self.subscribe(subject, queue)

    async def flush(self, timeout: int = 10) -> None:
        """Return when the server has handled what was sent; ``timeout`` in seconds."""
        await interruptible(super().flush(timeout))

    async def finish(self) -> None:
        """Send what waits to be sent, if the server takes it within a second."""
        if self.is_connected and self._pending_data_size:
            with suppress(OSError, nats.errors.Error, TimeoutError):
                await self.flush(_FINISH_S)

    async def abandon(self) -> None:
        """Close for good, in bounded time, whatever the server does."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.close()
        except (OSError, nats.errors.Error, TimeoutError):
            # Data for a server that is gone stays unsent.
            self.cut()
        except BaseException:
            self.cut()
            raise

    def cut(self) -> None:
        """End the connection at once, without sending anything."""
        if isinstance(self._transport, _Transport):
            self._transport.abort()

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is None:
            self._transport = _Transport(lambda: self.on_heard(), self._dial)
        task = asyncio.current_task()
        # Each attempt to connect again comes by here.
        if task is not None and task is self._reconnection_task and task.cancelling():
            raise asyncio.CancelledError
        # nats-py forgets a connection that its server has ended before its first word, and leaves it open.
        self.cut()
        await super()._connect_to_server(s)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            self.cut()
        self._forget_unsent()
        await super()._close(status, do_cbs)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._takes.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _attempt_reconnect(self) -> None:
        self.cut()
        self._forget_unsent()
        await super()._attempt_reconnect()

    def _forget_unsent(self) -> None:
        # Callers that wait for a reply are notified; unsent requests must not be sent later without them knowing.
        self._pending, self._pending_data_size = [], 0

    async def _read_loop(self) -> None:
        await super()._read_loop()
        await self._on_end(self._reading_task)

    async def _flusher(self) -> None:
        await super()._flusher()
        await self._on_end(self._flusher_task)

    async def _on_end(self, task: object) -> None:
        running = asyncio.current_task()
        # A cancelled one ends with its event loop, like everything else.
        if self.is_connected and task is running and running is not None and not running.cancelling():
            await self._process_op_err(nats.errors.ProtocolError())

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        if self.is_connected:
            self._queue_up(b"PING\r\n")

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            # The reply to a ping that no caller waits for any more.
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    async def _process_headers(self, block: bytes) -> Block | None:
        return Block(bytes(block)) if block else None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        take = self._takes.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]  # None is usual
        else:
            take(subject.decode(), reply.decode(), headers, data)

    def _connect_command(self) -> bytes:
        if self._insists_on_tls and not self._server_info.get("tls_required"):
            raise NoTlsError
        try:
            return bytes(super()._connect_command())
        except Exception as error:  # a broken credentials file can raise anything
            raise nats.errors.Error(f"the credentials cannot be used: {error}") from None


# --- what a server says in a message of its own, recognised by a status in its headers

NO_RESPONDERS: Final = 503


class Status(NamedTuple):
    """What a server's own message says: a code, 0 for any other message, and a text."""

    code: int
    text: str


_NO_STATUS: Final = Status(0, "")


def status_of(block: bytes | None) -> Status:
    """Return status and text of a server's own message; 0 for any other."""
    if block is None or not block[9:12].isdigit():
        return _NO_STATUS
    opening = block.partition(b"\r\n")[0]
    return Status(int(opening[9:12]), opening[13:].decode(errors="replace"))
