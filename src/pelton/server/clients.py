"""A client: who it is, what it may do, and what it subscribes to; it logs in, and is asked whether it still lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pelton.api.json_values import GoJsonError, StructReader
from pelton.server import identity as said
from pelton.server.connection import AccountPort, ClientConnection, ServerHost, SharedBuffer
from pelton.server.identity import ClientRights, Credentials, LoginRefusal, ServerUser, credentials_of, peer_of
from pelton.server.router import ClientSubscription
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
_CHECKED_AT_ONCE: Final = 64
_read_options: Final = StructReader(ConnectOptions)


class Client(ClientConnection):
    """The server's side of one client."""

    # Those of every connection, said again: whoever checks types of what is installed infers none.
    state: ConnectionState
    options: ConnectOptions
    echo: bool
    user: ServerUser | None
    account: AccountPort | None
    rights: ClientRights
    subscriptions: dict[bytes, ClientSubscription]
    rtt: float | None

    def __init__(self, host: ServerHost, shared: SharedBuffer, number: int) -> None:
        super().__init__(host, shared, number)
        self._has_entered = self._knows_account = self._has_measured = False
        self._reconsidered: float | None = None
        # The look at whether it is still let in.
        self._look: asyncio.Task[None] | None = None
        self.pinged: float = self.started
        self.pings: int = 0
        self._max_subscriptions = -1

    def _take(self, command: Command) -> None:
        _TAKES[type(command)](self, command)

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

    # --- logging in

    def _begin(self) -> None:
        if self._host.authenticator.is_required(self.kind):
            self._parser.awaits_connect = True
        else:
            # A client that never introduces itself may do everything, and is told everything.
            self.state = "open"
            self._let_in(self._host.authenticator.anonymous(self._credentials(self.options)))

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
            self._host.on_refusal(self)
            self.refuse(said.AUTHORIZATION_VIOLATION)
            return False
        is_new = account is not self.account or not self._has_entered
        if account is not self.account and account.is_full:
            self.refuse(said.MAX_ACCOUNT_CONNECTIONS)
            return False
        self._enter(user, account)
        if is_new and self.is_introduced:
            self._has_entered = True
            self._host.on_entry(self)
        return True

    def _enter(self, user: ServerUser, account: AccountPort) -> None:
        if account is not self.account:
            self._leave_account()
            account.join(self)
        self.user, self.account, self.rights = user, account, ClientRights(user)
        settings, options, own, others = self._host.settings, self.options, user.limits, account.limits
        self._max_subscriptions = smallest_limit(
            settings.max_subscriptions or -1, own.max_subscriptions, others.max_subscriptions
        )
        largest = smallest_limit(settings.max_payload, own.max_payload, others.max_payload)
        self._parser.limits = WireLimits(line=settings.max_control_line, payload=largest)
        self._max_pending = settings.max_pending
        self._is_limited, self._notes_replies = self.rights.permissions is not None, self.rights.answers
        self._is_plain = options.headers and not (self._is_limited or options.verbose or options.pedantic)

    def _leave_account(self) -> None:
        if self.account is not None:
            left, self.subscriptions = self.subscriptions, {}
            self.account.leave(self, left)

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
            await self._drop_forbidden()
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
        elif self._let_in(user) and 0 <= self._max_subscriptions < len(self.subscriptions):
            self.refuse(said.MAX_SUBSCRIPTIONS)
        return self.state == "open"

    def _leave(self) -> None:
        if self._login is not None:
            # Its password need not be checked any more.
            self._login.cancel()
        self._parser.close()
        self._leave_account()
        self._host.on_closing(self)

    # --- commands

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
        sid, subject, queue = command.sid, command.subject, command.queue
        if objection := self._objection(command):
            self._deny(objection)
            return
        self._confirm()
        # An id that has a subscription keeps it, whatever else is asked for under it.
        if self.account is not None and sid not in self.subscriptions:
            is_cut = self.rights.is_cut(subject, queue)
            one = self.subscriptions[sid] = ClientSubscription(self, sid, subject, queue, is_cut=is_cut)
            self.account.subscribe(one)

    def _objection(self, command: Sub) -> str:
        """Return why the client may not subscribe so, or an empty text."""
        is_known = command.sid in self.subscriptions
        if not is_filter(command.subject):
            return "" if is_known else "Invalid Subject"
        if not self.rights.may_subscribe(command.subject, command.queue):
            return said.subscription_violation(command.subject, command.queue)
        is_full = 0 <= self._max_subscriptions <= len(self.subscriptions)
        return said.MAX_SUBSCRIPTIONS if is_full and not is_known else ""

    def _unsubscribe(self, command: Unsub) -> None:
        one = self.subscriptions.get(command.sid)
        self._confirm()
        if one is None:
            return
        one.limit = command.limit
        if command.limit == 0 or one.received >= command.limit:
            self.drop(one)

    # --- permissions

    def _deny(self, text: str) -> None:
        _log.warning(
            "client %d (%s): %s", self.number, self.peer, text, extra={"client": self.number, "peer": self.peer}
        )
        self.write(encode_err(text))

    def _may_publish(self, subject: str) -> bool:
        """Whether the client may publish to a subject; if not, it was told."""
        if self.may_publish(subject):
            return True
        self._deny(said.publish_violation(subject))
        return False

    async def _drop_forbidden(self) -> None:
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
                    self._deny(said.subscription_violation(one.subject, one.queue))
            if not count % _CHECKED_AT_ONCE:
                await asyncio.sleep(0)

    # --- for others

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


_TAKES: Final[dict[type[Command], Callable[[Client, Any], None]]] = {
    Pub: Client._publish,
    Hpub: Client._publish_block,
    Sub: Client._subscribe,
    Unsub: Client._unsubscribe,
    Ping: Client._ping,
    Pong: Client._pong,
    Connect: Client._connect,
    Violation: Client._violation,
}


def smallest_limit(*limits: int) -> int:
    """Return the smallest limit. A negative limit means unlimited; -1 if all are unlimited."""
    return min([limit for limit in limits if limit >= 0], default=-1)
