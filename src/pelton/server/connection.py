"""One client: its bytes become commands, commands become effects on its account, and its messages become bytes.

Design: all connections read into one shared buffer, of a size at which a flooding client leaves others their share of
the loop. What a client may send in which state is a table (``wire/states.py``). What it is written, and when it is cut
for not reading, is the half in ``output.py``; who it is, and what it may do, is its ``membership.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pelton.server.auth import Credentials, LoginRefusal, ServerUser, credentials_of
from pelton.server.auth import refusals as said
from pelton.server.auth.certificates import peer_of
from pelton.server.membership import Membership
from pelton.server.output import ClientOutput
from pelton.server.ports import AccountPort, ServerHost
from pelton.server.router import ClientSubscription, MessageFrame
from pelton.subjects import is_subject
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
STALE_CONNECTION: Final = "Stale Connection"
_MEASURED_AFTER_S: Final = 2.0
_UNKNOWN: Final = "Unknown Protocol Operation"
# Of a client that has not introduced itself.
_UNSAID: Final = ConnectOptions()


class ClientConnection(ClientOutput):
    """The server's side of one connection. ``number`` names it."""

    options: ConnectOptions
    echo: bool
    started: float
    heard: float
    pinged: float
    pings: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    peer: str

    def __init__(self, host: ServerHost, number: int) -> None:
        super().__init__(host, number)
        self.options = _UNSAID
        self.user: ServerUser | None = None
        self.account: AccountPort | None = None
        self.echo = True
        self._parser = Parser("server", host.settings.wire)
        self._membership = Membership(self)
        # Asked for each message: most clients have no limits of their own.
        self._is_limited = self._notes_replies = self._is_plain = False
        self._nonce = ""
        self._is_greeted = self.is_bridged = False
        self._deferred: list[Command] | None = None
        self._login: asyncio.Task[None] | None = None
        self._reconsidered: float | None = None
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
        self.rtt: float | None = None
        self._has_measured = False
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
        elif not self._host.authenticator.is_required(self.kind):
            # A client that never introduces itself may do everything, and is told everything.
            self.state = "open"
            self._let_in(self._host.authenticator.anonymous(self._credentials(self.options)))

    def greeting(self, address: object) -> bytes:
        """Return what the client is told first; once it was returned, the connection does not write it by itself."""
        self._is_greeted = True
        self.peer = _name_of(address)
        if self._host.authenticator.wants_nonce:
            self._nonce = self._host.new_nonce()
        return encode_info(self._host.hello(self, self._nonce))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections read into."""
        return self._host.buffer.room_for(self.number)

    def buffer_updated(self, nbytes: int) -> None:
        """Carry out what the client sent."""
        self.heard = self._host.clock.monotonic()
        commands = self._parser.feed(self._host.buffer.taken(nbytes))
        if self._deferred is not None:
            self._deferred += commands
            return
        self._carry_out(commands)

    def _carry_out(self, commands: list[Command]) -> None:
        takes, index = self._takes, 0
        while index < len(commands):
            command = commands[index]
            kind = type(command)
            if self._is_plain and (kind is Pub or kind is Hpub) and self.state == "open" and self.account is not None:
                index = self.account.pass_on_run(self, commands, index)
                continue
            index += 1
            if self.state != "open" and not is_allowed(self.state, kind):
                if self.state == "greeted":
                    self.refuse(said.AUTHORIZATION_VIOLATION)
                return
            takes[kind](command)
            if self._deferred is not None:
                self._deferred += commands[index:]
                return

    def eof_received(self) -> bool:
        """Close the connection when the client has."""
        return False

    # --- writing

    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None:
        """Write a message for one of the client's subscriptions."""
        if frame.is_bare:
            head, tail = frame.head, frame.tail
        else:
            head, tail = frame.parts(self.options.headers)
        self.deliver_encoded(subscription, b"%b%b%b" % (head, subscription.sid, tail), frame.reply)

    def deliver_encoded(self, subscription: ClientSubscription, message: bytes, reply: str) -> None:
        """Write a message that is encoded for one of the client's subscriptions."""
        if self.state == "closed":
            return
        if self._notes_replies:
            self._membership.rights.expect_answer(reply, self._host.clock.monotonic())
        if not self._out:
            self._host.flush_later(self)
        self._out.append(message)
        size = len(message)
        self._out_bytes += size
        self.out_msgs += 1
        self.out_bytes += size
        subscription.received += 1
        if subscription.limit and subscription.received >= subscription.limit:
            self._membership.drop(subscription)
        if self._out_bytes > self._max_pending:
            self._cut_slow()

    def _has_room(self) -> None:
        if self.account is not None:
            self.account.has_room()

    # --- time

    def look(self, now: float) -> None:
        """Check what only time tells: a client that is silent, one that never introduced itself, one that is stuck."""
        settings = self._host.settings
        if self.stalled_since is not None and now - self.stalled_since > settings.write_deadline:
            self._cut_slow()
        elif (since := self._unproven_since) is not None and now - since > settings.auth_timeout_of(self.kind):
            self.refuse(said.AUTHENTICATION_TIMEOUT)
        elif self.user is not None and self._has_expired(self.user):
            self.refuse(said.USER_EXPIRED)
        elif self.state == "open" and now - max(self.pinged, 0 if self.pings else self.heard) > settings.ping_interval:
            if self.pings >= settings.ping_max:
                self.refuse(STALE_CONNECTION)
                return
            self.pings += 1
            self.pinged = now
            self.write(PING)
        elif self.state == "open" and not self._has_measured and now - self.started > _MEASURED_AFTER_S:
            # Not counted: it only shows how long the way to the client is.
            self._has_measured, self.pinged = True, now
            self.write(PING)

    @property
    def _unproven_since(self) -> float | None:
        """Since when the client has to prove who it is, or to be checked again; None if it does not have to."""
        return self.started if self.state == "greeted" else self._reconsidered

    def _has_expired(self, user: ServerUser) -> bool:
        return user.expires is not None and user.expires * 1e9 <= self._host.clock.now()

    # --- commands

    def _connect(self, command: Connect) -> None:
        options = parse_connect(command.options)
        if options is None:
            self.refuse(_UNKNOWN)
            return
        self.options, self.echo = options, options.echo
        self._deferred = []
        # Nobody may fill the memory before it is known who it is.
        self.stop_reading()
        self._login = self._host.spawn(self._log_in(options), f"pelton lets client {self.number} in")

    async def _log_in(self, options: ConnectOptions) -> None:
        user = await self._identify(self._credentials(options))
        self._login = None
        waiting, self._deferred = self._deferred or [], None
        self.read_again()
        if self.state == "closed" or not self._let_in(user):
            return
        self.state: ConnectionState = next_state(self.state, Connect)
        self._confirm()
        self._carry_out(waiting)

    async def _identify(self, shown: Credentials) -> ServerUser | LoginRefusal:
        try:
            return await self._host.authenticator.user(shown)
        except Exception as error:
            _log.exception(
                "client %d (%s) could not be let in",
                self.number,
                self.peer,
                extra={"client": self.number, "peer": self.peer},
            )
            return LoginRefusal(f"the authenticator failed: {error!r}")

    def _credentials(self, options: ConnectOptions) -> Credentials:
        address = self.peer.rpartition(":")[0].strip("[]")
        certificate = None if self._transport is None else self._transport.get_extra_info("peercert")
        return credentials_of(options, nonce=self._nonce, kind=self.kind, address=address, peer=peer_of(certificate))

    def _let_in(self, user: ServerUser | LoginRefusal) -> bool:
        """Make the client a user of its account; return False if it was refused, and told."""
        account = None if isinstance(user, LoginRefusal) else self._host.account(user.account)
        if isinstance(user, LoginRefusal) or account is None:
            reason = user.reason if isinstance(user, LoginRefusal) else f"account {user.account!r} is not served"
            _log.info(
                "client %d (%s) was refused: %s",
                self.number,
                self.peer,
                reason,
                extra={"client": self.number, "peer": self.peer},
            )
            self._host.turned_away(self)
            self.refuse(said.AUTHORIZATION_VIOLATION)
            return False
        is_new = account is not self.account
        refused = self._membership.enter(user, account, self._host.settings.max_subscriptions)
        if refused:
            self.refuse(refused)
            return False
        self.user, self.account = user, account
        self._is_limited, self._notes_replies = self._membership.is_limited, self._membership.rights.answers
        self._max_pending = self._host.settings.max_pending
        self._is_plain = not (self._is_limited or self.options.verbose or self.options.pedantic)
        if is_new and self.options is not _UNSAID:
            self._host.entered(self)
        return True

    async def reconsider(self) -> None:
        """Let the client in again, by settings that were changed, or not; end what it may no longer subscribe to."""
        if self.state != "open":
            return
        authenticator, shown = self._host.authenticator, self._credentials(self.options)
        is_unknown = shown.is_anonymous and shown.peer is None and not authenticator.is_required(self.kind)
        self._reconsidered = self._host.clock.monotonic()
        user = authenticator.anonymous(shown) if is_unknown else await self._identify(shown)
        self._reconsidered = None
        if self.state != "open" or not self._let_in(user):
            return
        for text in self._membership.drop_forbidden():
            self._deny(text)

    def _ended(self) -> None:
        if self._login is not None:
            # Its password need not be checked any more.
            self._login.cancel()
        self._membership.leave()
        self._host.forget(self)

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
        if self.pinged > self.started:
            self.rtt = self._host.clock.monotonic() - self.pinged
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
        if self._is_limited and not self._may_publish(subject, len(data) + (len(block) if block else 0)):
            return
        options = self.options
        if options.pedantic and not is_subject(subject):
            # As on NATS, it reaches those who subscribe to a filter that matches it nevertheless.
            self.write(encode_err("Invalid Publish Subject"))
        if options.verbose:
            self.write(OK)
        if not self.account.pass_on(self, subject, reply, block, data) and reply and options.no_responders:
            self.account.tell_no_responders(subject, reply)

    def _subscribe(self, command: Sub) -> None:
        objection = self._membership.objection(command)
        if objection:
            self._deny(objection)
            return
        self._confirm()
        self._membership.subscribe(command)

    def _unsubscribe(self, command: Unsub) -> None:
        one = self._membership.subscriptions.get(command.sid)
        self._confirm()
        if one is None:
            return
        one.limit = command.limit
        if command.limit == 0 or one.received >= command.limit:
            self._membership.drop(one)

    # --- permissions

    def _deny(self, text: str) -> None:
        _log.warning(
            "client %d (%s): %s", self.number, self.peer, text, extra={"client": self.number, "peer": self.peer}
        )
        self.write(encode_err(text))

    def _may_publish(self, subject: str, size: int) -> bool:
        """Whether the client may publish a message; if not, it was told."""
        if not self._membership.rights.may_publish(subject, self._host.clock.monotonic()):
            self._deny(said.publish_violation(subject))
            return False
        if 0 <= self._membership.max_payload < size:
            self.refuse(said.MAX_PAYLOAD)
            return False
        return True

    def may_receive(self, subscription: ClientSubscription, subject: str) -> bool:
        """Whether a subscription, of which not all messages may reach the client, gets a message."""
        return self._membership.rights.may_receive(subject, subscription.queue)

    # --- what is told of it

    @property
    def kind(self) -> str:
        """How it connects, as users may be restricted to."""
        return "WEBSOCKET" if self.is_bridged else "STANDARD"

    @property
    def num_subscriptions(self) -> int:
        """How many subscriptions the client has."""
        return len(self._membership.subscriptions)

    @property
    def subscription_list(self) -> list[ClientSubscription]:
        """What it subscribes to."""
        return list(self._membership.subscriptions.values())

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
