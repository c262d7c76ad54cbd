"""One client: its bytes become commands, commands become effects on its account, and its messages become bytes.

Design: all connections read into one shared buffer, of a size at which a flooding client leaves others their share of
the loop. What is written in a round of the event loop is joined and written once, at its end. A client that does not
read is cut when too much waits for it, or when what waits does not move for too long. What a client may send in which
state is a table (``wire/states.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pelton.server.auth import Credentials, Permissions, ServerUser
from pelton.server.ports import AccountPort, ServerHost
from pelton.server.router import ClientSubscription, MessageFrame
from pelton.subjects import is_filter, is_subject
from pelton.wire import (
    OK,
    PING,
    PONG,
    Command,
    Connect,
    ConnectionState,
    ConnectOptions,
    Hpub,
    Parser,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
    Violation,
    encode_err,
    encode_info,
    is_allowed,
    next_state,
    parse_connect,
)

_log: Final = logging.getLogger("pelton.server")
SLOW_CONSUMER: Final = "Slow Consumer"
STALE_CONNECTION: Final = "Stale Connection"
_TIMED_OUT: Final = "Authentication Timeout"
_REFUSED: Final = "Authorization Violation"
_UNKNOWN: Final = "Unknown Protocol Operation"
_ROOM: Final = 2048
_ROOM_BYTES: Final = 16 << 20


class ClientConnection(asyncio.BufferedProtocol):
    """The server's side of one connection. ``number`` names it."""

    def __init__(self, host: ServerHost, number: int) -> None:
        self._host = host
        self.number = number
        self.options = ConnectOptions()
        self.user: ServerUser | None = None
        self.account: AccountPort | None = None
        self.echo = True
        self.peer = ""
        self.reason = ""
        self.state: ConnectionState = "greeted"
        self._parser = Parser("server", host.settings.wire)
        self._transport: asyncio.Transport | None = None
        self._subscriptions: dict[bytes, ClientSubscription] = {}
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._permissions: Permissions | None = None
        self._answers: dict[str, tuple[int, float]] = {}
        self._nonce = ""
        self._is_greeted = self.is_bridged = self._is_full = False
        self._deferred: list[Command] | None = None
        self._takes: dict[type[Command], Callable[..., None]] = {
            Pub: self._publish,
            Hpub: self._publish_block,
            Sub: self._subscribe,
            Unsub: self._unsubscribe,
            Ping: self._ping,
            Pong: self._pong,
            Connect: self._connect,
            Violation: self._violation,
        }
        self.started = self.heard = self.pinged = host.clock.monotonic()
        self.pings = 0
        self.stalled_since: float | None = None
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=1 << 16)
        address = transport.get_extra_info("peername")
        refused = self._host.admit(self)
        if self._is_greeted:
            self.peer = _name_of(address)
        else:
            self.write(self.greeting(address))
        if refused:
            self.refuse(refused)
        elif not self._host.authenticator.is_required:
            # A client that never introduces itself may do everything, and is told everything.
            self.state = "open"
            self._join(ServerUser())

    def greeting(self, address: object) -> bytes:
        """Return what the client is told first; once it was returned, the connection does not write it by itself."""
        self._is_greeted = True
        self.peer = _name_of(address)
        if self._host.authenticator.wants_nonce:
            self._nonce = self._host.new_nonce()
        return encode_info(self._host.hello(self, self._nonce))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections read into."""
        return self._host.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Carry out what the client sent."""
        self.heard = self._host.clock.monotonic()
        commands = self._parser.feed(bytes(self._host.buffer[:nbytes]))
        if self._deferred is not None:
            self._deferred += commands
            return
        self._carry_out(commands)

    def _carry_out(self, commands: list[Command]) -> None:
        takes = self._takes
        for index, command in enumerate(commands):
            kind = type(command)
            if self.state != "open" and not is_allowed(self.state, kind):
                if self.state == "greeted":
                    self.refuse(_REFUSED)
                return
            takes[kind](command)
            if self._deferred is not None:
                self._deferred += commands[index + 1 :]
                return

    def eof_received(self) -> bool:
        """Close the connection when the client has."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the client."""
        self._close_state(self.reason or "Client Closed")
        self._transport = None

    def pause_writing(self) -> None:
        """Note since when the client does not read."""
        self.stalled_since = self._host.clock.monotonic()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.stalled_since = None
        if self.account is not None:
            self.account.has_room()

    # --- writing

    def write(self, data: bytes) -> None:
        """Write bytes at the end of this round of the loop."""
        if not self._out:
            self._host.flush_later(self)
        self._out.append(data)
        self._out_bytes += len(data)

    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None:
        """Write a message for one of the client's subscriptions."""
        if self.state == "closed":
            return
        head, tail = frame.parts(self.options.headers)
        if not self._out:
            self._host.flush_later(self)
        self._out += (head, subscription.sid, tail)
        size = len(head) + len(tail)
        self._out_bytes += size
        self.out_msgs += 1
        self.out_bytes += size
        subscription.received += 1
        if subscription.limit and subscription.received >= subscription.limit:
            self._drop(subscription)
        if self._out_bytes > self._host.settings.max_pending:
            self._cut_slow()

    def flush(self) -> None:
        """Write what has gathered."""
        out, self._out, self._out_bytes = self._out, [], 0
        transport = self._transport
        if transport is None or not out:
            return
        transport.write(b"".join(out))
        if transport.get_write_buffer_size() > self._host.settings.max_pending:
            self._cut_slow()
        elif self._is_full and self.room and self.account is not None:
            self.account.has_room()

    def _cut_slow(self) -> None:
        if self.state != "closed":
            _log.warning("client %d (%s) was cut: it reads too slowly", self.number, self.peer)
            self.cut(SLOW_CONSUMER)

    @property
    def room(self) -> int:
        """How many more messages a push consumer should deliver to this client."""
        if self._transport is None or self.state == "closed":
            return 0
        waiting = self._out_bytes + self._transport.get_write_buffer_size()
        self._is_full = waiting >= _ROOM_BYTES or self.stalled_since is not None
        return 0 if self._is_full else _ROOM

    # --- the end

    def refuse(self, text: str) -> None:
        """Tell the client why, and close the connection once it was told."""
        if self.state == "closed":
            return
        self.write(encode_err(text))
        self.flush()
        self._close_state(text)
        if self._transport is not None:
            self._transport.close()

    def cut(self, reason: str) -> None:
        """Close the connection at once: the client does not listen."""
        self._close_state(reason)
        if self._transport is not None:
            self._transport.abort()

    def _close_state(self, reason: str) -> None:
        if self.state == "closed":
            return
        self.state, self.reason = "closed", reason
        if self.account is not None:
            for one in list(self._subscriptions.values()):
                self.account.unsubscribe(one)
            self.account.leave(self)
        self._subscriptions.clear()
        self._host.forget(self)

    def close(self, reason: str) -> None:
        """Close the connection once everything for it is written."""
        self.flush()
        self._close_state(reason)
        if self._transport is not None:
            self._transport.close()

    def stop_reading(self) -> None:
        """Read nothing until :meth:`read_again`: the store cannot follow."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def read_again(self) -> None:
        """Read what the client sends."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def look(self, now: float) -> None:
        """Check what only time tells: a client that is silent, one that never introduced itself, one that is stuck."""
        settings = self._host.settings
        if self.stalled_since is not None and now - self.stalled_since > settings.write_deadline:
            self._cut_slow()
        elif self.state == "greeted" and now - self.started > settings.auth_timeout:
            self.refuse(_TIMED_OUT)
        elif self.state == "open" and now - max(self.pinged, 0 if self.pings else self.heard) > settings.ping_interval:
            if self.pings >= settings.ping_max:
                self.refuse(STALE_CONNECTION)
                return
            self.pings += 1
            self.pinged = now
            self.write(PING)

    # --- commands

    def _connect(self, command: Connect) -> None:
        options = parse_connect(command.options)
        if options is None:
            self.refuse(_UNKNOWN)
            return
        self.options, self.echo = options, options.echo
        self._deferred = []
        self._host.spawn(self._log_in(options), f"pelton lets client {self.number} in")

    async def _log_in(self, options: ConnectOptions) -> None:
        user = await self._host.authenticator.user(Credentials(options=options, nonce=self._nonce))
        waiting, self._deferred = self._deferred or [], None
        if self.state == "closed":
            return
        if user is None or not self._join(user):
            self.refuse(_REFUSED)
            return
        self.state = next_state(self.state, Connect)
        self._confirm()
        self._carry_out(waiting)

    def _join(self, user: ServerUser) -> bool:
        """Make the client a user of its account; return whether there is such an account."""
        account = self._host.account(user.account)
        if account is None:
            return False
        if self.account is not None and self.account is not account:
            self.account.leave(self)
        self.user, self.account, self._permissions = user, account, user.permissions
        account.join(self)
        return True

    def _confirm(self) -> None:
        if self.options.verbose:
            self.write(OK)

    def _ping(self, command: Ping) -> None:
        self.pings = 0
        if self.account is None or self.account.is_settled:
            self.write(PONG)
        else:
            # Other processes learn of the client's subscriptions first.
            self.account.on_settled(lambda: self.write(PONG))

    def _pong(self, command: Pong) -> None:
        self.pings = 0

    def _violation(self, command: Violation) -> None:
        self.refuse(command.text)

    def _publish(self, command: Pub) -> None:
        self._publish_message(command.subject, command.reply, None, command.data)

    def _publish_block(self, command: Hpub) -> None:
        self._publish_message(command.subject, command.reply, command.block, command.data)

    def _publish_message(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        assert self.account is not None
        self.in_msgs += 1
        self.in_bytes += len(data) + (len(block) if block else 0)
        if self._permissions is not None and not self._may_publish(self._permissions, subject):
            self._deny(f'Permissions Violation for Publish to "{subject}"')
            return
        options = self.options
        if options.pedantic and not is_subject(subject):
            # As on NATS, it reaches those who subscribe to a filter that matches it nevertheless.
            self.write(encode_err("Invalid Publish Subject"))
        if options.verbose:
            self.write(OK)
        self.account.publish(self, subject, reply, block, data)

    def _subscribe(self, command: Sub) -> None:
        subject, queue, sid = command.subject, command.queue, command.sid
        assert self.account is not None
        if not is_filter(subject):
            self.write(encode_err("Invalid Subject"))
            return
        permissions, is_cut = self._permissions, False
        if permissions is not None:
            if not permissions.subscribe.allows_filter(subject, queue):
                using = f' using queue "{queue}"' if queue else ""
                self._deny(f'Permissions Violation for Subscription to "{subject}"{using}')
                return
            is_cut = permissions.subscribe.cuts(subject)
        most = self._host.settings.max_subscriptions
        if most and len(self._subscriptions) >= most:
            self.write(encode_err("maximum subscriptions exceeded"))
            return
        self._confirm()
        if sid not in self._subscriptions:
            one = ClientSubscription(self, sid, subject, queue, is_cut=is_cut)
            self._subscriptions[sid] = one
            self.account.subscribe(one)

    def _unsubscribe(self, command: Unsub) -> None:
        one = self._subscriptions.get(command.sid)
        self._confirm()
        if one is None:
            return
        one.limit = command.limit
        if command.limit == 0 or one.received >= command.limit:
            self._drop(one)

    def _drop(self, one: ClientSubscription) -> None:
        if self._subscriptions.pop(one.sid, None) is not None and self.account is not None:
            self.account.unsubscribe(one)

    # --- permissions

    def _deny(self, text: str) -> None:
        _log.warning("client %d (%s): %s", self.number, self.peer, text)
        self.write(encode_err(text))

    def _may_publish(self, permissions: Permissions, subject: str) -> bool:
        if permissions.publish.allows(subject):
            return True
        left, until = self._answers.get(subject, (0, 0.0))
        if not left or (until and self._host.clock.monotonic() > until):
            self._answers.pop(subject, None)
            return False
        self._answers[subject] = (left - 1, until)
        return True

    def may_receive(self, subject: str) -> bool:
        """Whether the client may receive a message, if its subscription does not tell."""
        return self._permissions is None or self._permissions.subscribe.allows(subject)

    def expect_answer(self, reply: str) -> None:
        """Let the client answer a request that it received."""
        permissions = self._permissions
        if permissions is not None and permissions.responses and reply:
            until = self._host.clock.monotonic() + permissions.response_s if permissions.response_s else 0.0
            self._answers[reply] = (permissions.responses, until)

    # --- what is told of it

    @property
    def num_subscriptions(self) -> int:
        """How many subscriptions the client has."""
        return len(self._subscriptions)

    @property
    def subjects(self) -> list[str]:
        """What it subscribes to."""
        return [one.subject for one in self._subscriptions.values()]

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait to be written."""
        return self._out_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    @property
    def account_name(self) -> str:
        """The name of its account, empty before it has one."""
        return "" if self.account is None else self.account.name

    @property
    def user_name(self) -> str:
        """The name of its user, empty for nobody in particular."""
        return "" if self.user is None else self.user.name


def _name_of(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "unix")
