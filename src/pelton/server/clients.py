"""Clients: how the parts of a server see each other, what is read of a client, what it is written, and who it is.

**The buffer that all connections read into.** A client that floods would have the loop for as long as its bytes take.
So it gets little at a time as long as others send something, too, and more only if it has been alone for a while, when
there is nobody to wait for it. A client that has not logged in gets as much as a login may be long.

**What goes out to one client.** What is written in a round of the event loop is joined and written once, at its end.
While the socket takes nothing, what is written waits here, in one piece, so that many small answers cost no more than
their bytes. A client that does not read is cut when too much waits for it, or when what waits is not taken for too
long; also if the connection is to be closed, which counts as long as it is there.

A connection ends in order: what is written is followed by the end of the stream, and what the client still sends is
read and dropped until it has closed, too. A socket that is closed with unread input resets the connection, and the
client loses what it was sent last.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from pelton.api import Incoming
from pelton.runtime import Clock
from pelton.server.accounts import AccountUsage, smallest_limit
from pelton.server.auth import Authenticator, ServerUser
from pelton.server.auth import identity as said
from pelton.server.auth.identity import ClientRights
from pelton.server.router import ClientSubscription, Receiver, Router, Targets
from pelton.server.settings import ServerSettings
from pelton.subjects import is_filter
from pelton.wire import Command, ConnectionState, ConnectOptions, KnownLines, ServerHello, Sub, encode_err

_T = TypeVar("_T")
_AT_ONCE: Final = 256


async def in_portions(items: Iterable[_T], at_once: int = _AT_ONCE) -> AsyncIterator[list[_T]]:
    """Yield the next items together, and let clients have their turn after each time."""
    rest = iter(items)
    while some := list(islice(rest, at_once)):
        yield some
        await asyncio.sleep(0)


# --- how the parts of a server see each other: a client, its account, and services on subjects


class Client(Receiver, Protocol):
    """A connected client; ``number`` names it, ``peer`` is its address. ``is_bridged``: it comes by WebSocket."""

    number: int
    peer: str
    is_bridged: bool
    options: ConnectOptions
    user: ServerUser | None
    in_msgs: int
    in_bytes: int
    started: float
    rtt: float | None

    @property
    def kind(self) -> str: ...
    @property
    def account_name(self) -> str: ...
    @property
    def is_introduced(self) -> bool: ...
    @property
    def subscription_list(self) -> list[ClientSubscription]: ...
    @property
    def is_held(self) -> bool: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def write(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def look(self, now: float) -> None: ...
    def may_publish(self, subject: str) -> bool: ...
    def refuse(self, text: str) -> None: ...
    def close(self, reason: str) -> None: ...


class Published(NamedTuple):
    """A message that a client published."""

    client: Client
    subject: str
    reply: str
    block: bytes | None
    data: bytes


class SubjectService(Protocol):
    """Answers messages on some subjects in place of a client."""

    def take(self, message: Published) -> bool:
        """Answer a message, now or later; return False if nobody does, and it is to be treated as any other."""
        ...


class AccountPort(Protocol):
    """An account, for its clients, and for other accounts and what its store delivers.

    ``is_settled``: other processes know all subscriptions of a client.
    """

    name: str
    usage: AccountUsage
    router: Router

    def is_settled(self, client: Client) -> bool: ...
    def on_settled(self, call: Callable[[], None]) -> None: ...
    def join(self, client: Client) -> None: ...
    def leave(self, client: Client, subscriptions: dict[bytes, ClientSubscription]) -> None: ...
    def resume_consumers(self) -> None: ...
    def subscribe(self, subscription: ClientSubscription) -> None: ...
    def unsubscribe(self, subscription: ClientSubscription) -> None: ...
    def pass_on(
        self,
        client: Client,
        subject: str,
        reply: str,
        block: bytes | None,
        data: bytes,
        *,
        is_imported: bool = False,
        is_asked: bool = False,
    ) -> bool:
        """Pass on a message of a client, perhaps one of another account; return whether somebody takes it.

        A message of another account is of a stream that this one imports, or of a service that is asked.
        """
        ...

    def pass_on_run(self, client: Client, commands: Sequence[Command], begin: int, until: float) -> int: ...
    def tell_no_responders(self, client: Client, subject: str, reply: str) -> None: ...
    def reached(self, subject: str) -> tuple[Targets, str]:
        """Return which clients get a message, and the stream that stores it, or an empty text."""
        ...

    def send(self, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> int: ...
    def receives(self, subject: str) -> bool: ...
    def answer(self, reply: str, block: bytes | None, data: bytes) -> None: ...
    def has_room_for(self, subject: str) -> bool: ...
    def poke(self) -> None: ...
    def look_at_push(self, subject: str) -> None: ...
    def importing(self, subject: str) -> list[ClientSubscription]: ...
    def push_abroad(self, subject: str, message: Incoming) -> None: ...


_SIZE: Final = 32 << 10
_BESIDE_OTHERS: Final = 8 << 10
_ALONE_AFTER: Final = 64
_LOGIN: Final = 4 << 10


class SharedBuffer:
    """One buffer for all connections of an event loop; each names itself by a number."""

    def __init__(self) -> None:
        self.whole: memoryview[int] = memoryview(bytearray(_SIZE))
        self._part = self.whole[:_BESIDE_OTHERS]
        self.for_login: memoryview[int] = self.whole[:_LOGIN]
        self._reader = -1
        self._in_a_row = 0
        # How often anything was read.
        self.reads = 0

    def room_for(self, reader: int) -> memoryview:
        """Return where a connection reads into."""
        if reader != self._reader:
            self._reader, self._in_a_row = reader, 0
            return self._part
        self._in_a_row += 1
        return self.whole if self._in_a_row > _ALONE_AFTER else self._part

    def taken(self, size: int) -> bytes:
        """Return what was read."""
        self.reads += 1
        return bytes(self.whole[:size])


class RoundEnd:
    """The connections that have gathered output in this round of the event loop."""

    def __init__(self) -> None:
        self._unflushed: list[ClientOutput] = []

    def flush_later(self, client: ClientOutput) -> None:
        """Write what gathers for a client at the end of this round."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(client)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for client in unflushed:
            client.flush()


class ServerHost(Protocol):
    """The server, for its connections. All connections read into ``buffer``, and share ``known_lines``.

    ``reloads``: how often its settings were changed.
    """

    settings: ServerSettings
    reloads: int
    authenticator: Authenticator
    clock: Clock
    buffer: SharedBuffer
    round_end: RoundEnd
    known_lines: KnownLines

    def admit(self, client: Client) -> str:
        """Count a new connection; return why it is refused, or an empty text."""
        ...

    def entered(self, client: Client) -> None:
        """Tell that a client was let in."""
        ...

    def turned_away(self, client: Client) -> None:
        """Tell that a client was not let in."""
        ...

    def forget(self, client: Client) -> None:
        """Report a connection no more: it is being closed."""
        ...

    def released(self, number: int) -> None:
        """Count the connection of a ``number`` no more: it is closed."""
        ...

    def hello(self, client: Client, nonce: str) -> ServerHello: ...
    def account(self, name: str) -> AccountPort | None: ...
    def new_nonce(self) -> str: ...
    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


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
    def _on_room(self) -> None:
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
            self._on_room()

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
            self._on_room()

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


# --- a client as a member of an account: as which user, with which rights and limits, and what it subscribes to

_CHECKED_AT_ONCE: Final = 64


class Membership:
    """What one client is and has in its account; ``account`` and ``user`` are None before it is let in."""

    rights: ClientRights
    max_payload: int

    def __init__(self) -> None:
        self.account: AccountPort | None = None
        self.user: ServerUser | None = None
        self.rights = ClientRights(ServerUser())
        self.max_payload = self._max_subscriptions = -1
        self.subscriptions: dict[bytes, ClientSubscription] = {}

    def enter(self, client: Client, user: ServerUser, account: AccountPort, max_subscriptions: int) -> str:
        """Become a user of an account; ``max_subscriptions`` is the server's own limit (0: none).

        Returns why it is refused, or an empty text.
        """
        if account is not self.account:
            if account.usage.is_full():
                return said.MAX_ACCOUNT_CONNECTIONS
            self.leave(client)
            account.join(client)
        limits = user.limits
        self.user, self.account, self.rights = user, account, ClientRights(user)
        self.max_payload = smallest_limit(limits.max_payload, account.usage.limits.max_payload)
        self._max_subscriptions = smallest_limit(
            max_subscriptions or -1, limits.max_subscriptions, account.usage.limits.max_subscriptions
        )
        return ""

    def leave(self, client: Client) -> None:
        """Leave the account, with all subscriptions."""
        if self.account is not None:
            left, self.subscriptions = self.subscriptions, {}
            self.account.leave(client, left)

    @property
    def is_limited(self) -> bool:
        """Whether what the client publishes has to be checked: most clients have no limits of their own."""
        return self.rights.permissions is not None

    # --- subscriptions

    def objection(self, command: Sub) -> str:
        """Return why the client may not subscribe so, or an empty text."""
        assert self.account is not None
        if not is_filter(command.subject):
            # An id that has a subscription keeps it, whatever else is asked for under it.
            return "" if command.sid in self.subscriptions else "Invalid Subject"
        if not self.rights.may_subscribe(command.subject, command.queue):
            return said.subscription_violation(command.subject, command.queue)
        is_full = 0 <= self._max_subscriptions <= len(self.subscriptions)
        return said.MAX_SUBSCRIPTIONS if is_full and command.sid not in self.subscriptions else ""

    @property
    def has_too_many(self) -> bool:
        """Whether the client has more subscriptions than it may have by now."""
        return 0 <= self._max_subscriptions < len(self.subscriptions)

    def subscribe(self, client: Client, command: Sub) -> None:
        """Subscribe, unless the client does so already under this id."""
        sid, subject, queue = command.sid, command.subject, command.queue
        if self.account is not None and sid not in self.subscriptions:
            is_cut = self.rights.is_cut(subject, queue)
            one = self.subscriptions[sid] = ClientSubscription(client, sid, subject, queue, is_cut=is_cut)
            self.account.subscribe(one)

    def drop(self, one: ClientSubscription) -> None:
        """End a subscription. Idempotent."""
        if self.subscriptions.pop(one.sid, None) is not None and self.account is not None:
            self.account.unsubscribe(one)

    async def drop_forbidden(self, tell: Callable[[str], None]) -> None:
        """End what the client may no longer subscribe to, so many in a round of the event loop, and tell it of each."""
        subscriptions = list(self.subscriptions.values())
        for one in subscriptions:
            # Its messages are checked until all of it is.
            one.is_cut = True
        for count, one in enumerate(subscriptions, start=1):
            if self.subscriptions.get(one.sid) is one:
                one.is_cut = self.rights.is_cut(one.subject, one.queue)
                if not self.rights.may_subscribe(one.subject, one.queue):
                    self.drop(one)
                    tell(said.subscription_violation(one.subject, one.queue))
            if not count % _CHECKED_AT_ONCE:
                await asyncio.sleep(0)
