"""The connection of a leaf node to its hub: what crosses, and what each side tells the other (`leaf_protocol.py`).

An account has the same interest as its hub: what its clients subscribe to, what its streams take and its consumers are
told, the hub is told (``interest.py``); what the hub is interested in, are subscriptions of its connection, as if
it were a client that gets each message once. What one hub wants, another is not told.

A server tells nobody its interest before it has heard the hub's: a hub that has the loop subject of this store serves
it by another way already, and is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from pelton.engine.serving import INBOXES
from pelton.server.connection import AccountPort, ClientConnection, ServerHost, SharedBuffer
from pelton.server.identity import ClientRights
from pelton.server.interest import Interest, LeafInterest
from pelton.server.router import ClientSubscription, HubSubscription, MessageFrame
from pelton.subjects import is_filter
from pelton.wire import PING, PONG, Command, ConnectionState, ConnectOptions, Ping, Pong, Violation
from pelton.wire.leaf_protocol import (
    LOOP_DETECTED,
    LOOP_PREFIX,
    Hello,
    HubHello,
    HubRefusal,
    LeafConnect,
    LeafMessage,
    LeafParser,
    LeafSub,
    LeafUnsub,
    encode_connect,
    encode_interest,
    encode_leaf_message,
)

_log: Final = logging.getLogger("pelton.server")
CONNECT_S: Final = 5.0
_MOST_INBOXES: Final = 1024
LOOP: Final = "the hub leads back to this store, or serves it by another connection already"


class HubLink(Protocol):
    """The way to a hub, for its connection; ``url`` is its address as it is shown."""

    url: str
    interest: LeafInterest

    @property
    def account(self) -> AccountPort: ...
    def rights(self, hub: HubHello) -> ClientRights: ...
    def on_open(self, connection: LeafConnection) -> None: ...


class LeafConnection(ClientConnection):
    """The connection to a hub. ``on_end`` is called with the reason when it has ended."""

    # Those of every connection, said again: whoever checks types of what is installed infers none.
    state: ConnectionState
    options: ConnectOptions
    account: AccountPort | None
    rights: ClientRights
    subscriptions: dict[bytes, ClientSubscription]
    peer: str
    out_msgs: int
    out_bytes: int
    rtt: float | None

    def __init__(
        self,
        host: ServerHost,
        shared: SharedBuffer,
        number: int,
        link: HubLink,
        hub: HubHello,
        connect: LeafConnect,
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(host, shared, number)
        self._parser = LeafParser()
        self._link = link
        self.hub: HubHello = hub
        self._connect = connect
        self._on_end = on_end
        self.account = link.account
        self.echo = False
        self.options = ConnectOptions(name=hub.server_name, headers=hub.headers, verbose=False, pedantic=False)
        self.rights = link.rights(hub)
        self._pinged = self.started
        self._pings = 0
        # What the hub wants is not acted on before it has told all of it.
        self._early: dict[bytes, LeafSub] | None = {}
        # The inboxes from which the hub was asked lately, and whether they are of other processes.
        self._inboxes: dict[str, bool] = {}

    # --- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this server to the hub, and ask it to answer once it has told its interest."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1)
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{host}:{port}"
        self.write(encode_connect(self._connect) + PING)

    def _begin(self) -> None:
        """Do nothing: it is this side that logs in."""

    def reconsider(self) -> asyncio.Task[None] | None:
        """Do nothing: what crosses changes with a restart."""
        self._reloads = self._host.reloads
        return None

    def _open(self, early: dict[bytes, LeafSub]) -> None:
        """Share interest: the hub has told its own."""
        self._early, self.state = None, "open"
        interest = self._link.interest
        for command in early.values():
            self._subscribe(command)
        interest.refresh()
        interest.hubs.append(self)
        lines = [self._line(key, interest.weight(key)) for key in interest.all()]
        self.write(b"".join([encode_interest(interest.loop, "", 1), *lines]))
        self._link.on_open(self)
        interest.on_hubs()

    def _leave(self) -> None:
        hubs = self._link.interest.hubs
        if self in hubs:
            hubs.remove(self)
            self._link.interest.on_hubs()
        self._parser.close()
        left, self.subscriptions = self.subscriptions, {}
        self._link.account.leave(self, left)
        self._on_end(self.reason)

    def connection_lost(self, error: Exception | None) -> None:
        self._close_state(self.reason or (f"the connection was lost: {error}" if error else "the hub has closed it"))
        self._transport = None
        self._waiting.clear()

    def look(self, now: float) -> None:
        """Check what only time tells: a hub that is silent, or takes nothing."""
        settings = self._host.settings
        if self.stalled_since is not None and now - self.stalled_since > settings.write_deadline:
            self.cut("the hub reads too slowly")
        elif self.state == "greeted" and now - self.started > 2 * CONNECT_S:
            self.cut("the hub does not answer")
        elif (
            self.state == "open" and now - max(self._pinged, 0 if self._pings else self.heard) > settings.ping_interval
        ):
            if self._pings >= settings.ping_max:
                self.cut("the hub does not answer")
                return
            self._pings += 1
            self._pinged = now
            self.write(PING)

    def close(self, reason: str) -> None:
        """Close the connection once everything for the hub is written; at once if it does not take that."""
        self.flush()
        self._close_state(reason)
        if self._transport is not None:
            self._transport.abort() if self.stalled_since is not None else self._transport.close()

    # --- what this side sends

    def forward(self, route: str, frame: MessageFrame, queues: Sequence[str]) -> bool:
        if self.state != "open" or not self.may_publish(route):
            return False
        if frame.size > self.hub.max_payload:
            _log.warning("a message on %r is too large for the hub %s, and was dropped", route, self._link.url)
            return False
        if frame.reply.startswith(INBOXES):
            self._tell_inbox(frame.reply)
        block = frame.block if self.hub.headers else None
        data = encode_leaf_message(route, frame.subject, frame.reply, queues, block, frame.data)
        self.write(data)
        self.out_msgs += 1
        self.out_bytes += frame.size
        if self._out_bytes > self._max_pending:
            self._cut_slow()
        return True

    def _tell_inbox(self, reply: str) -> None:
        """Let the hub's answer come back, if it is for another process, whose inboxes the hub does not know."""
        inbox = f"{reply.rpartition('.')[0]}.*" if reply.count(".") > 1 else reply
        if inbox in self._inboxes:
            return
        if len(self._inboxes) >= _MOST_INBOXES:
            oldest = next(iter(self._inboxes))
            if self._inboxes.pop(oldest):
                self.tell((oldest, ""), self._link.interest.weight((oldest, "")))
        found = self._link.account.router.subscriptions(reply)
        self._inboxes[inbox] = all(isinstance(one, HubSubscription) for one in found)
        if self._inboxes[inbox]:
            self.tell((inbox, ""), 1)

    def tell(self, key: Interest, number: int) -> None:
        """Tell the hub how many want what it may send."""
        if line := self._line(key, number):
            self.write(line)

    def _line(self, key: Interest, number: int) -> bytes:
        subject, queue = key
        return encode_interest(subject, queue, number) if self.rights.may_subscribe(subject, queue) else b""

    # --- what the hub sends

    def _take(self, command: Command) -> None:
        _TAKES[type(command)](self, command)

    def _on_hello(self, command: Hello) -> None:
        self.hub, self.rights = command.hub, self._link.rights(command.hub)

    def _on_pong(self, command: Pong) -> None:
        self._pings = 0
        self.rtt = self._host.clock.monotonic() - self._pinged
        if self._early is not None:
            self._open(self._early)

    def _on_refusal(self, command: HubRefusal) -> None:
        if LOOP_DETECTED in command.text:
            self.close(LOOP)
        elif self.state != "open":
            self.close(command.text)
        else:
            _log.warning("the hub %s refuses: %s", self._link.url, command.text)

    def _on_violation(self, command: Violation) -> None:
        self.close(f"the hub breaks the protocol: {command.text}")

    def _on_no_interest(self, command: LeafUnsub) -> None:
        key = _id_of(command.subject, command.queue)
        if self._early is not None:
            self._early.pop(key, None)
        elif (one := self.subscriptions.get(key)) is not None:
            self.drop(one)

    def _on_interest(self, command: LeafSub) -> None:
        if command.subject.startswith(LOOP_PREFIX):
            if self._leads_back(command.subject):
                self.close(LOOP)
        elif self._early is not None:
            self._early[_id_of(command.subject, command.queue)] = command
        else:
            self._subscribe(command)

    def _leads_back(self, subject: str) -> bool:
        """Whether to leave a hub that has a loop subject: it is this store's, and another way to it stays."""
        own, hubs = self._link.interest.loop, self._link.interest.hubs
        if subject.rpartition(".")[0] != own.rpartition(".")[0]:
            return False
        # Of two that have met, the process that began first stays, or the first way of one process.
        return self._early is not None or (subject < own if subject != own else hubs[0] is not self)

    def _subscribe(self, command: LeafSub) -> None:
        subject, queue = command.subject, command.queue
        key = _id_of(subject, queue)
        if (known := self.subscriptions.get(key)) is not None:
            assert isinstance(known, HubSubscription)
            known.weight = max(command.weight, 1)
            return
        if not is_filter(subject) or _is_denied(self.rights, subject):
            return
        weight = max(command.weight, 1)
        one = self.subscriptions[key] = HubSubscription(self, self, key, subject, queue, weight)
        self._link.account.subscribe(one)

    def _receive_message(self, message: LeafMessage) -> None:
        size = len(message.data) + len(message.block or b"")
        self.in_msgs += 1
        self.in_bytes += size
        account, route = self._link.account, message.route
        if not self.may_receive_subject(route):
            return
        if message.subject == route:
            account.pass_on(self, route, message.reply, message.block, message.data, queues=message.queues)
            return
        # What a stream of the hub delivers.
        frame = MessageFrame(message.subject, message.reply, message.block, message.data)
        account.router.deliver_for(account.router.targets(route), route, frame, self, message.queues)

    def may_receive_subject(self, subject: str) -> bool:
        """Whether the hub may send a message."""
        permissions = self.rights.permissions
        return permissions is None or permissions.subscribe.allows(subject)


_TAKES: Final[dict[type[Command], Callable[[LeafConnection, Any], None]]] = {
    LeafMessage: LeafConnection._receive_message,
    LeafSub: LeafConnection._on_interest,
    LeafUnsub: LeafConnection._on_no_interest,
    Ping: lambda connection, _: connection.write(PONG),
    Pong: LeafConnection._on_pong,
    Hello: LeafConnection._on_hello,
    HubRefusal: LeafConnection._on_refusal,
    Violation: LeafConnection._on_violation,
}


def _id_of(subject: str, queue: str) -> bytes:
    return f"{subject} {queue}".encode()


def _is_denied(rights: ClientRights, filter: str) -> bool:
    """Whether nothing that a filter matches may be sent."""
    return rights.permissions is not None and not rights.permissions.publish.allows_filter(filter)
