"""One connection: its bytes become commands, what it publishes goes to its account, and its messages become bytes.

All connections read into one shared buffer. A client that floods would have the loop for as long as its bytes take. So
it gets little at a time as long as others send something, too, and more only if it has been alone for a while, when
there is nobody to wait for it. A client that has not logged in gets as much as a login may be long, and is read as far
as its ``CONNECT``, and no further until it was let in (``clients.py``).

What is written in a round of the event loop is joined and written once, at its end; but what a client is answered as it
is read, and that what it published is stored, at once. While the socket takes nothing, what is written waits here, in
one piece, so that many small answers cost no more than their bytes. A client that does not read is cut when too much
waits for it, or when what waits is not taken for too long; also if the connection is to be closed, which counts as long
as it is there.

A connection ends in order: what is written is followed by the end of the stream, and what the client still sends is
read and dropped until it has closed, too. A socket that is closed with unread input resets the connection, and the
client loses what it was sent last. A connection that has ended holds nothing, and nothing holds it: no circle of
references waits for the garbage collector.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

import msgspec

from pelton.api import Delivered, Incoming
from pelton.runtime import Clock
from pelton.server.identity import Authenticator, ClientRights, ServerUser
from pelton.server.router import ClientSubscription, MessageFrame, Router, Targets
from pelton.server.settings import ServerSettings
from pelton.server.settings.options import ConnectionLimits
from pelton.wire import (
    AckRun,
    Command,
    ConnectionState,
    ConnectOptions,
    Hpub,
    KnownLines,
    Parser,
    Pub,
    PubRun,
    ServerHello,
    encode_err,
    encode_info,
)

# --- how the parts of a server see each other: a client's account, services on subjects, and the server itself


class Published(msgspec.Struct, frozen=True, gc=False):
    """A message that a client published."""

    client: ClientConnection
    subject: str
    reply: str
    block: bytes | None
    data: bytes


class SubjectService(Protocol):
    """Answers messages on some subjects in place of a client."""

    def take(self, message: Published) -> bool:
        """Answer a message, now or later; return False if nobody does, and it is to be treated as any other."""


class AccountPort(Protocol):
    """An account, for its clients, and for other accounts and what its store delivers.

    ``is_settled``: other processes know all subscriptions of a client.
    """

    name: str
    limits: ConnectionLimits
    router: Router

    @property
    def is_full(self) -> bool: ...
    def is_settled(self, client: ClientConnection) -> bool: ...
    def on_settled(self, call: Callable[[], None]) -> None: ...
    def join(self, client: ClientConnection) -> None: ...
    def leave(self, client: ClientConnection, subscriptions: dict[bytes, ClientSubscription]) -> None: ...
    def resume_consumers(self) -> None: ...
    def subscribe(self, subscription: ClientSubscription) -> None: ...
    def unsubscribe(self, subscription: ClientSubscription) -> None: ...
    def pass_on(
        self,
        client: ClientConnection,
        subject: str,
        reply: str,
        block: bytes | None,
        data: bytes,
        *,
        is_imported: bool = False,
        is_asked: bool = False,
        queues: Sequence[str] | None = None,
    ) -> bool: ...
    def pass_on_run(self, client: ClientConnection, commands: list[Command], begin: int, until: float) -> int: ...
    def tell_no_responders(self, client: ClientConnection, subject: str, reply: str) -> None: ...
    def receivers_of(self, subject: str) -> tuple[Targets, str]: ...
    def send(self, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> int: ...
    def send_answers(self, replies: Sequence[str], bodies: Sequence[bytes]) -> None: ...
    def send_all(self, route: str, messages: Sequence[Delivered]) -> None: ...
    def receives(self, subject: str) -> bool: ...
    def answer(self, reply: str, block: bytes | None, data: bytes) -> None: ...
    def has_room_for(self, subject: str) -> bool: ...
    def poke(self) -> None: ...
    def hurry(self) -> None: ...
    def look_at_push(self, subject: str) -> None: ...
    def importing(self, subject: str) -> list[ClientSubscription]: ...
    def is_answered_abroad(self, subject: str) -> bool: ...
    def push_abroad(self, subject: str, message: Incoming) -> None: ...


class ServerHost(Protocol):
    """The server, for its parts; ``reloads`` is how often its settings were changed.

    ``facts`` are what each answer and event says of it.
    """

    name: str
    settings: ServerSettings
    reloads: int
    authenticator: Authenticator
    clock: Clock

    def admit(self, client: ClientConnection) -> str: ...
    def on_entry(self, client: ClientConnection) -> None: ...
    def on_refusal(self, client: ClientConnection) -> None: ...
    def on_closing(self, client: ClientConnection) -> None: ...
    def on_closed(self, number: int) -> None: ...
    def hello(self, client: ClientConnection, nonce: str) -> ServerHello: ...
    def facts(self) -> dict[str, Any]: ...
    def account(self, name: str) -> AccountPort | None: ...
    def new_nonce(self) -> str: ...
    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


# --- what all connections of an event loop share

_SIZE: Final = 32 << 10
_BESIDE_OTHERS: Final = 8 << 10
_ALONE_AFTER: Final = 64
_LOGIN: Final = 4 << 10


class SharedBuffer:
    """The buffer that connections read into, the lines they know, and those that have gathered output in this round.

    For reading, each names itself by a number.
    """

    def __init__(self) -> None:
        self.whole: memoryview[int] = memoryview(bytearray(_SIZE))
        self._part = self.whole[:_BESIDE_OTHERS]
        self.for_login: memoryview[int] = self.whole[:_LOGIN]
        self._reader = -1
        self._in_a_row = 0
        # How often anything was read.
        self.reads: int = 0
        self.lines: KnownLines = KnownLines()
        self._unflushed: list[ClientConnection] = []

    def room_for(self, reader: int) -> memoryview:
        """Return where a connection reads into."""
        if reader != self._reader:
            self._reader, self._in_a_row = reader, 0
            return self._part
        self._in_a_row += 1
        return self.whole if self.is_alone else self._part

    @property
    def is_alone(self) -> bool:
        """Whether nobody but the last reader has sent anything for a while."""
        return self._in_a_row > _ALONE_AFTER

    def take(self, size: int) -> bytes:
        self.reads += 1
        return bytes(self.whole[:size])

    def flush_later(self, client: ClientConnection) -> None:
        """Write what gathers for a client at the end of this round."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(client)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for client in unflushed:
            client.flush()


_log: Final = logging.getLogger("pelton.server")
_PUBLISHES: Final = (Pub, AckRun, PubRun, Hpub)
SLOW_CONSUMER: Final = "Slow Consumer"
_ROOM: Final = 2048
_ROOM_BYTES: Final = 16 << 20
_RESERVE: Final = 65_536
_SLOW_BYTES: Final = 1 << 16
# For so long a client may take to close its side, once everything was sent to it.
LINGER_S: Final = 1.0
# For so long a client may have the loop, before others have their turn.
_TURN_S: Final = 0.005
# Of a client that has not introduced itself.
UNSAID: Final = ConnectOptions()


class ClientConnection(asyncio.BufferedProtocol):
    """One connection, as far as bytes and messages go; ``number`` names it, ``is_bridged``: it comes by WebSocket."""

    def __init__(self, host: ServerHost, shared: SharedBuffer, number: int) -> None:
        self._host = host
        self._shared = shared
        self.number: int = number
        self.peer: str = ""
        self.reason: str = ""
        self.state: ConnectionState = "greeted"
        self.options: ConnectOptions = UNSAID
        self.echo: bool = True
        self.user: ServerUser | None = None
        self.account: AccountPort | None = None
        self.rights: ClientRights = ClientRights(ServerUser())
        self.subscriptions: dict[bytes, ClientSubscription] = {}
        # Asked for each message: most clients have no limits of their own.
        self._is_limited = self._notes_replies = self._is_plain = False
        self._parser = Parser(host.settings.wire, shared.lines)
        self._nonce = ""
        self._is_greeted = self.is_bridged = False
        # By which of the server's settings it was let in.
        self._reloads = host.reloads
        self._login: asyncio.Task[None] | None = None
        self._holds = self._stops = 0
        self._left: list[Command] | None = None
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._waiting = bytearray()
        self._is_full = self._is_reading = False
        self._max_pending = host.settings.max_pending
        self.stalled_since: float | None = None
        self.started: float = host.clock.monotonic()
        self.heard: float = self.started
        self.rtt: float | None = None
        self.in_msgs = self.in_bytes = 0
        self.out_msgs: int = 0
        self.out_bytes: int = 0

    @abstractmethod
    def _begin(self) -> None:
        """Let in who need not log in."""

    @abstractmethod
    def _take(self, command: Command) -> None:
        """Carry out one command."""

    @abstractmethod
    def reconsider(self) -> asyncio.Task[None] | None:
        """Let the client in again if settings were changed since, or not; what it sends waits until that is known."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the account, and the server."""

    # --- reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # What it does not take at once waits here.
        transport.set_write_buffer_limits(high=1)
        address = transport.get_extra_info("peername")
        refused = self._host.admit(self)
        if self._is_greeted:
            self.peer = _name_of(address)
        else:
            self.write(self.greeting(address))
        if refused:
            self.refuse(refused)
        else:
            self._begin()

    def greeting(self, address: object) -> bytes:
        """Return what the client is told first; once it was returned, the connection does not write it by itself."""
        self._is_greeted = True
        self.peer = _name_of(address)
        if self._host.authenticator.wants_nonce:
            self._nonce = self._host.new_nonce()
        return encode_info(self._host.hello(self, self._nonce))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections read into."""
        buffer = self._shared
        return buffer.for_login if self._parser.awaits_connect else buffer.room_for(self.number)

    def buffer_updated(self, nbytes: int) -> None:
        """Carry out what the client sent."""
        self._is_reading = True
        try:
            self.receive(self._shared.take(nbytes))
            # What it is answered at once needs no other round of the loop, nor does what it has sent alone.
            if self.account is not None and self._shared.is_alone:
                if self._out:
                    self.flush()
                self.account.hurry()
        finally:
            self._is_reading = False
            if self._out:
                self.flush()

    def receive(self, data: bytes) -> None:
        """Carry out what the client sent, as far as it may be carried out now."""
        if self.state == "closed":
            return
        self.heard = self._host.clock.monotonic()
        waits = self._parser.is_paused
        commands = self._parser.feed(data)
        if commands or not waits:
            self._carry_out(commands)

    def _carry_out(self, commands: list[Command]) -> None:
        if self._reloads != self._host.reloads:
            self.reconsider()
        now = self._host.clock.monotonic
        index, until = 0, now() + _TURN_S
        while index < len(commands) and self.state != "closed":
            if self._holds or (index and now() > until):
                self._parser.pause()
                break
            command = commands[index]
            if self._is_plain and type(command) in _PUBLISHES and self.account is not None:
                index = self.account.pass_on_run(self, commands, index, until)
                continue
            if isinstance(command, (AckRun, PubRun)):
                commands[index : index + 1] = command.messages
                continue
            index += 1
            self._take(command)
        if self._holds:
            self._parser.pause()
        if self._parser.is_paused and self._login is None and self.state != "closed":
            self.stop_reading()
            if self._holds:
                self._left = commands[index:]
            else:
                asyncio.get_running_loop().call_soon(self._take_turn, commands[index:])

    def _take_turn(self, commands: list[Command]) -> None:
        """Continue where :meth:`_carry_out` has let others have their turn."""
        if self.state != "closed":
            self.read_again()
            self._carry_out(commands or self._parser.go_on())

    def hold(self) -> None:
        """Carry out nothing more until :meth:`release` was called as often as this: in a later round of the loop."""
        self._holds += 1

    def release(self) -> None:
        """Go on where :meth:`hold` has stopped."""
        self._holds -= 1
        if not self._holds and self._left is not None:
            left, self._left = self._left, None
            asyncio.get_running_loop().call_soon(self._take_turn, left)

    @property
    def is_held(self) -> bool:
        """Whether nothing more is carried out for now."""
        return self._holds > 0

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

    # --- writing

    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None:
        """Write a message for one of the client's subscriptions."""
        head, tail = frame.parts(self.options.headers)
        self.deliver_run(subscription, b"%b%b%b" % (head, subscription.sid, tail), frame.size, frame.replies)

    def deliver_run(self, subscription: ClientSubscription, run: bytes, size: int, replies: Sequence[str]) -> None:
        """Write messages that are encoded for one of the client's subscriptions: one, or it has no limit.

        ``size`` is what they hold without their lines, ``replies`` has the reply of each.
        """
        if self.state == "closed":
            return
        if self._notes_replies:
            for reply in replies:
                self.rights.expect_answer(reply, self._host.clock.monotonic())
        if not (self._out or self._is_reading):
            self._shared.flush_later(self)
        self._out.append(run)
        self._out_bytes += len(run)
        self.out_msgs += len(replies)
        self.out_bytes += size
        received = subscription.received = subscription.received + len(replies)
        if 0 < subscription.limit <= received:
            self.drop(subscription)
        if self._out_bytes > self._max_pending:
            self._cut_slow()

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
            self._resume_consumers()

    def write(self, data: bytes) -> None:
        """Write bytes at the end of this round of the loop."""
        if not (self._out or self._is_reading):
            self._shared.flush_later(self)
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
            self._resume_consumers()

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

    def _resume_consumers(self) -> None:
        if self.account is not None:
            self.account.resume_consumers()

    # --- its account

    def may_publish(self, subject: str) -> bool:
        return self.rights.may_publish(subject, self._host.clock.monotonic())

    def may_receive(self, subscription: ClientSubscription, subject: str) -> bool:
        """Whether a subscription, of which not all messages may reach the client, gets a message."""
        return self.rights.may_receive(subject, subscription.queue)

    def has(self, subscription: ClientSubscription) -> bool:
        """Whether a subscription has not ended."""
        return self.subscriptions.get(subscription.sid) is subscription

    def drop(self, one: ClientSubscription) -> None:
        """End a subscription. Idempotent."""
        if self.subscriptions.pop(one.sid, None) is not None and self.account is not None:
            self.account.unsubscribe(one)

    @property
    def kind(self) -> str:
        """How it connects, as users may be restricted to."""
        return "WEBSOCKET" if self.is_bridged else "STANDARD"

    @property
    def num_subscriptions(self) -> int:
        return len(self.subscriptions)

    @property
    def subscription_list(self) -> list[ClientSubscription]:
        return list(self.subscriptions.values())

    @property
    def account_name(self) -> str:
        """The name of its account, empty before it has one."""
        return "" if self.account is None else self.account.name

    @property
    def is_introduced(self) -> bool:
        """Whether its ``CONNECT`` has come."""
        return self.options is not UNSAID

    @property
    def user_name(self) -> str:
        """The name of its user, empty for nobody in particular."""
        return "" if self.user is None else self.user.name

    # --- the end

    def refuse(self, text: str) -> None:
        """Tell the client why, and close the connection once it was told."""
        if self.state != "closed":
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
        self._leave()

    def connection_lost(self, error: Exception | None) -> None:
        self._close_state(self.reason or "Client Closed")
        self._transport = None
        self._waiting.clear()
        self._host.on_closed(self.number)


def _name_of(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "unix")
