"""One client: its bytes become commands, commands become effects on its account, and its messages become bytes.

Design: all connections read into one shared buffer, of a size at which a flooding client leaves others their share of
the loop. A client that has to log in is read as far as its ``CONNECT``, and no further until it was let in. What it is
written, when it is cut for not reading, who it is, and what it may do, stands in ``clients.py``. A connection that has
ended holds nothing, and nothing holds it: no circle of references waits for the garbage collector.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pelton.api.json_values import GoJsonError, StructReader
from pelton.server.auth import Credentials, LoginRefusal, ServerUser, credentials_of
from pelton.server.auth import identity as said
from pelton.server.auth.identity import peer_of
from pelton.server.clients import AccountPort, ClientOutput, Membership, ServerHost
from pelton.server.router import ClientSubscription, MessageFrame
from pelton.subjects import is_subject
from pelton.wire import (
    OK,
    PING,
    PONG,
    Command,
    Connect,
    ConnectOptions,
    Hpub,
    Parser,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
    Violation,
    WireLimits,
    encode_err,
    encode_info,
)

_log: Final = logging.getLogger("pelton.server")
STALE_CONNECTION: Final = "Stale Connection"
_GONE: Final = "Client Closed"
_MEASURED_AFTER_S: Final = 2.0
_read_options: Final = StructReader(ConnectOptions)
# For so long a client may have the loop, before others have their turn.
_TURN_S: Final = 0.005
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
        self._parser = Parser(host.settings.wire, host.known_lines)
        self._membership = Membership()
        # Asked for each message: most clients have no limits of their own.
        self._is_limited = self._notes_replies = self._is_plain = False
        self._nonce = ""
        self._is_greeted = self.is_bridged = self._has_entered = self._knows_account = False
        self._login: asyncio.Task[None] | None = None
        self._reconsidered: float | None = None
        # By which of the server's settings it was let in, and the look at whether it still is.
        self._reloads = host.reloads
        self._look: asyncio.Task[None] | None = None
        self._holds = 0
        self._left: list[Command] | None = None
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
        elif self._host.authenticator.is_required(self.kind):
            self._parser.awaits_connect = True
        else:
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
        buffer = self._host.buffer
        return buffer.for_login if self._parser.awaits_connect else buffer.room_for(self.number)

    def buffer_updated(self, nbytes: int) -> None:
        """Carry out what the client sent."""
        self.receive(self._host.buffer.taken(nbytes))

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
        self.reconsider()
        now = self._host.clock.monotonic
        index, until = 0, now() + _TURN_S
        while index < len(commands) and self.state != "closed":
            if self._holds or (index and now() > until):
                self._parser.pause()
                break
            command = commands[index]
            kind = type(command)
            if self._is_plain and (kind is Pub or kind is Hpub) and self.account is not None:
                index = self.account.pass_on_run(self, commands, index, until)
                continue
            index += 1
            _TAKES[kind](self, command)
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
            self._host.round_end.flush_later(self)
        self._out.append(message)
        size = len(message)
        self._out_bytes += size
        self.out_msgs += 1
        # As nats-server counts: what the message holds, without its line.
        self.out_bytes += size - message.find(b"\r\n") - 4
        subscription.received += 1
        if subscription.limit and subscription.received >= subscription.limit:
            self._membership.drop(subscription)
        if self._out_bytes > self._max_pending:
            self._cut_slow()

    def _on_room(self) -> None:
        if self.account is not None:
            self.account.resume_consumers()

    # --- time

    def look(self, now: float) -> None:
        """Check what only time tells: a client that is silent, one that never introduced itself, one that is stuck."""
        settings = self._host.settings
        if self.state == "closed":
            if self.stalled_since is not None and now - self.stalled_since > self.lingers_for:
                self.cut(self.reason)
        elif self.stalled_since is not None and now - self.stalled_since > settings.write_deadline:
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
        try:
            # A second one changes what the first one said.
            options = _read_options(command.options, self.options if self.is_introduced else None)
        except GoJsonError:
            self.close("Parse Error")
            return
        self.options, self.echo = options, options.echo
        # Nobody may fill the memory before it is known who it is.
        self.stop_reading()
        self._login = self._host.spawn(self._log_in(options), f"pelton lets client {self.number} in")

    async def _log_in(self, options: ConnectOptions) -> None:
        user = await self._identify(self._credentials(options))
        self._login = None
        if self.state == "closed" or not self._let_in(user) or not self._speaks_our_protocol():
            return
        self.state, self._parser.awaits_connect = "open", False
        self._confirm()
        self.read_again()
        self._carry_out(self._parser.go_on())

    def _speaks_our_protocol(self) -> bool:
        """Whether a client asks for what there is; it is refused if not."""
        if self.options.account or self.options.new_account:
            # Which account it is in is not for a client to say.
            self.refuse(said.AUTHORIZATION_VIOLATION)
        elif self.options.protocol not in (0, 1):
            self.refuse("invalid client protocol")
        elif self.options.no_responders and not self.options.headers:
            self.refuse("no responders requires headers support")
        return self.state != "closed"

    async def _identify(self, shown: Credentials) -> ServerUser | LoginRefusal:
        try:
            while True:
                reloads = self._host.reloads
                user = await self._host.authenticator.user(shown)
                if reloads == self._host.reloads:
                    return user
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
        is_new = account is not self.account or not self._has_entered
        refused = self._membership.enter(self, user, account, self._host.settings.max_subscriptions)
        if refused:
            self.refuse(refused)
            return False
        self.user, self.account = user, account
        self._is_limited, self._notes_replies = self._membership.is_limited, self._membership.rights.answers
        settings, own = self._host.settings, self._membership.max_payload
        largest = settings.max_payload if own < 0 else min(own, settings.max_payload)
        self._parser.limits = WireLimits(line=settings.max_control_line, payload=largest)
        self._max_pending = settings.max_pending
        options = self.options
        self._is_plain = options.headers and not (self._is_limited or options.verbose or options.pedantic)
        if is_new and self.is_introduced:
            self._has_entered = True
            self._host.entered(self)
        return True

    def reconsider(self) -> asyncio.Task[None] | None:
        """Let the client in again if settings were changed since, or not; what it sends waits until that is known.

        Returns the look at that which is under way, if there is one.
        """
        if self._reloads != self._host.reloads:
            self._reloads = self._host.reloads
            if self.state == "open":
                self.hold()
                self._look = self._host.spawn(self._let_in_again(), f"pelton looks at client {self.number}")
        return self._look

    async def _let_in_again(self) -> None:
        """Let the client in again, or not; end what it may no longer subscribe to."""
        try:
            is_in = await self._is_still_let_in()
        finally:
            self.release()
        if is_in:
            await self._membership.drop_forbidden(self._deny)
        if self._look is asyncio.current_task():
            self._look = None

    async def _is_still_let_in(self) -> bool:
        if self.state == "open" and self._host.account(self.account_name) is not self.account:
            # As on nats-server, it is not told that its account is gone.
            self.close(_GONE)
        if self.state != "open":
            return False
        authenticator, shown = self._host.authenticator, self._credentials(self.options)
        is_unknown = shown.is_anonymous and shown.peer is None and not authenticator.is_required(self.kind)
        self._reconsidered = self._host.clock.monotonic()
        user = authenticator.anonymous(shown) if is_unknown else await self._identify(shown)
        self._reconsidered = None
        if self.state != "open":
            return False
        if isinstance(user, ServerUser) and self._host.account(user.account) is not self.account:
            # It would keep none of its subscriptions, and not know that.
            self.close(_GONE)
        elif self._let_in(user) and self._membership.has_too_many:
            self.refuse(said.MAX_SUBSCRIPTIONS)
        return self.state == "open"

    def _ended(self) -> None:
        if self._login is not None:
            # Its password need not be checked any more.
            self._login.cancel()
        self._parser.close()
        self._membership.leave(self)
        self._host.forget(self)

    def _confirm(self) -> None:
        if self.options.verbose:
            self.write(OK)

    def _ping(self, command: Ping) -> None:
        self.pings = 0
        if self.account is None or self.account.is_settled(self):
            self._answer_ping()
            return
        # Other processes learn of its subscriptions first; what it has sent after its ping is carried out then.
        self.hold()
        self.account.on_settled(self._answer_held_ping)

    def _answer_held_ping(self) -> None:
        self._answer_ping()
        self.release()

    def _answer_ping(self) -> None:
        self.write(PONG)
        self._tell_account()

    def _tell_account(self) -> None:
        """Tell a client once, after its first ping, what its account is."""
        if not self._knows_account and self.is_introduced and self.options.protocol >= 1:
            self._knows_account = True
            self.write(encode_info(self._host.hello(self, self._nonce)))

    def _pong(self, command: Pong) -> None:
        if self.pinged > self.started:
            self.rtt = self._host.clock.monotonic() - self.pinged
        self.pings = 0

    def _violation(self, command: Violation) -> None:
        self.refuse(command.text)

    def _publish(self, command: Pub) -> None:
        self._publish_message(command.subject, command.reply, None, command.data)

    def _publish_block(self, command: Hpub) -> None:
        if not self.options.headers:
            self.close("message headers not supported")
            return
        self._publish_message(command.subject, command.reply, command.block, command.data)

    def _publish_message(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        assert self.account is not None
        self.in_msgs += 1
        self.in_bytes += len(data) + (len(block) if block else 0)
        if self._is_limited and not self._may_publish(subject):
            return
        options = self.options
        if options.pedantic and not is_subject(subject):
            # As on NATS, it reaches those who subscribe to a filter that matches it nevertheless.
            self.write(encode_err("Invalid Publish Subject"))
        if options.verbose:
            self.write(OK)
        if not self.account.pass_on(self, subject, reply, block, data) and reply and options.no_responders:
            self.account.tell_no_responders(self, subject, reply)

    def _subscribe(self, command: Sub) -> None:
        objection = self._membership.objection(command)
        if objection:
            self._deny(objection)
            return
        self._confirm()
        self._membership.subscribe(self, command)

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

    def may_publish(self, subject: str) -> bool:
        """Whether the client may publish to a subject."""
        return self._membership.rights.may_publish(subject, self._host.clock.monotonic())

    def _may_publish(self, subject: str) -> bool:
        """Whether the client may publish to a subject; if not, it was told."""
        if self.may_publish(subject):
            return True
        self._deny(said.publish_violation(subject))
        return False

    def may_receive(self, subscription: ClientSubscription, subject: str) -> bool:
        """Whether a subscription, of which not all messages may reach the client, gets a message."""
        return self._membership.rights.may_receive(subject, subscription.queue)

    def has(self, subscription: ClientSubscription) -> bool:
        """Whether a subscription has not ended."""
        return self._membership.subscriptions.get(subscription.sid) is subscription

    # --- monitoring

    @property
    def has_to_log_in(self) -> bool:
        """Whether nothing but its ``CONNECT`` is read."""
        return self._parser.awaits_connect

    @property
    def has_more(self) -> bool:
        """Whether it has sent what is not carried out yet: others have their turn, or too much waits to be stored."""
        return self._parser.is_paused or self._stops > 0

    @property
    def max_payload(self) -> int:
        """The most bytes of a message that it may publish."""
        return self._parser.limits.payload

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
    def is_introduced(self) -> bool:
        """Whether its ``CONNECT`` has come."""
        return self.options is not _UNSAID

    @property
    def user_name(self) -> str:
        """The name of its user, empty for nobody in particular."""
        return "" if self.user is None else self.user.name


_TAKES: Final[dict[type[Command], Callable[[ClientConnection, Any], None]]] = {
    Pub: ClientConnection._publish,
    Hpub: ClientConnection._publish_block,
    Sub: ClientConnection._subscribe,
    Unsub: ClientConnection._unsubscribe,
    Ping: ClientConnection._ping,
    Pong: ClientConnection._pong,
    Connect: ClientConnection._connect,
    Violation: ClientConnection._violation,
}


def _name_of(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "unix")
