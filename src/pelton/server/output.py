"""What goes out to one client: gathered, written once a round, and never more than the client takes.

Design: what is written in a round of the event loop is joined and written once, at its end. While the socket takes
nothing, what is written waits here, in one piece, so that many small answers cost no more than their bytes. A client
that does not read is cut when too much waits for it, or when what waits is not taken for too long; also if the
connection is to be closed, which counts as long as it is there.

A connection ends in order: what is written is followed by the end of the stream, and what the client still sends is
read and dropped until it has closed, too. A socket that is closed with unread input resets the connection, and the
client loses what it was sent last.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import Final

from pelton.server.ports import ServerHost
from pelton.wire import ConnectionState, encode_err

_log: Final = logging.getLogger("pelton.server")
SLOW_CONSUMER: Final = "Slow Consumer"
_ROOM: Final = 2048
_ROOM_BYTES: Final = 16 << 20
_RESERVE: Final = 65_536
_SLOW_BYTES: Final = 1 << 16
# For so long a client may take to close its side, once everything was sent to it.
LINGER_S: Final = 1.0


class ClientOutput(asyncio.BufferedProtocol):
    """The writing half of a connection, and its end. ``number`` names it."""

    reason: str

    def __init__(self, host: ServerHost, number: int) -> None:
        self._host = host
        self.number = number
        self.peer = ""
        self.reason = ""
        self.state: ConnectionState = "greeted"
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._waiting = bytearray()
        self._is_full = False
        self._max_pending = host.settings.max_pending
        self.stalled_since: float | None = None
        self._stops = 0

    @abstractmethod
    def _ended(self) -> None:
        """Leave the account, and the server."""

    @abstractmethod
    def _has_room(self) -> None:
        """Let what waits for this client continue."""

    def pause_writing(self) -> None:
        """Note since when the socket does not take what is written."""
        self.stalled_since = self._host.clock.monotonic()

    def resume_writing(self) -> None:
        """Write what has waited: everything before it is on its way."""
        if self.state == "closed":
            return
        self.stalled_since = None
        waiting, self._waiting = self._waiting, bytearray()
        if waiting and self._transport is not None:
            self._transport.write(waiting)
        if self.room:
            self._has_room()

    # --- writing

    def write(self, data: bytes) -> None:
        """Write bytes at the end of this round of the loop."""
        if not self._out:
            self._host.round_end.flush_later(self)
        self._out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        """Write what has gathered."""
        out, self._out, self._out_bytes = self._out, [], 0
        transport = self._transport
        if transport is None or not out or self.state == "closed":
            return
        data = b"".join(out)
        if self.stalled_since is None:
            transport.write(data)
        else:
            self._waiting += data
        if self.pending_bytes > self._max_pending:
            self._cut_slow()
        elif self._is_full and self.room:
            self._has_room()

    def _cut_slow(self) -> None:
        if self.state != "closed":
            _log.warning(
                "client %d (%s) was cut: it reads too slowly",
                self.number,
                self.peer,
                extra={"client": self.number, "peer": self.peer},
            )
            self.cut(SLOW_CONSUMER)

    @property
    def room(self) -> int:
        """How many more messages a push consumer should deliver to this client."""
        if self._transport is None or self.state == "closed":
            return 0
        self._is_full = self.pending_bytes >= (_ROOM_BYTES if self.stalled_since is None else _SLOW_BYTES)
        return 0 if self._is_full else _ROOM

    @property
    def reserve(self) -> int:
        """How many more messages may be delivered to this client although it reads slowly."""
        if self._transport is None or self.state == "closed":
            return 0
        return 0 if 2 * self.pending_bytes >= self._max_pending else _RESERVE

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait to be written."""
        written = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._out_bytes + len(self._waiting) + written

    @property
    def tls(self) -> tuple[str, str] | None:
        """The version and the cipher of the connection, None without TLS."""
        cipher = None if self._transport is None else self._transport.get_extra_info("cipher")
        return None if cipher is None else (cipher[1].removeprefix("TLSv"), cipher[0])

    # --- reading

    def stop_reading(self) -> None:
        """Read nothing until :meth:`read_again` was called as often as this."""
        self._stops += 1
        if self.state != "closed" and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def read_again(self) -> None:
        """Read what the client sends, unless there is another reason not to."""
        self._stops -= 1
        transport = self._transport
        if self.state != "closed" and not self._stops and transport is not None and not transport.is_closing():
            transport.resume_reading()

    # --- the end

    def refuse(self, text: str) -> None:
        """Tell the client why, and close the connection once it was told."""
        if self.state == "closed":
            return
        self.write(encode_err(text))
        self.close(text)

    def cut(self, reason: str) -> None:
        """Close the connection at once: the client does not listen."""
        self._close_state(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str) -> None:
        """Close the connection once everything for it is written, or the client takes nothing of it for too long."""
        if self.state == "closed":
            return
        self.flush()
        self._close_state(reason)
        transport = self._transport
        if transport is None:
            return
        self.stalled_since = self._host.clock.monotonic()
        if self._waiting:
            transport.write(self._waiting)
            self._waiting = bytearray()
        if transport.is_closing() or not transport.can_write_eof():
            # TLS says goodbye in its own way.
            transport.close()
            return
        transport.write_eof()
        transport.resume_reading()

    @property
    def lingers_for(self) -> float:
        """How long a connection may stay that is to be closed (s)."""
        return self._host.settings.write_deadline if self.pending_bytes else LINGER_S

    def _close_state(self, reason: str) -> None:
        if self.state == "closed":
            return
        self.state, self.reason = "closed", reason
        self._ended()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the client."""
        self._close_state(self.reason or "Client Closed")
        self._transport = None
        self._waiting.clear()
        self._host.released(self.number)
