"""One account: its clients, who gets what they publish, and its store, if it has one.

A message of a client goes to the account's subscribers at once, as on NATS; then to the stream that takes its subject,
or else to subscribers in other processes that have the same store open. If nobody takes a request, its client is told
(status 503). Subjects of services (``$JS.API.>``) are answered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from pelton.api import Delivered, Incoming, Outgoing, headers
from pelton.server.connection import ClientConnection, Published, SubjectService
from pelton.server.crossing import (
    REQUEST_INFO,
    TRACE,
    AccountCrossing,
    MessageTracer,
    TraceRequest,
    is_answer,
    without_trace,
)
from pelton.server.interest import LeafInterest
from pelton.server.router import (
    NO_TARGETS,
    ClientSubscription,
    Departures,
    MessageFrame,
    Router,
    Targets,
    WideDelivery,
    in_portions,
    tail_of,
)
from pelton.server.settings.options import ConnectionLimits, TraceConfig
from pelton.server.store_link import StoreLink
from pelton.subjects import has_wildcard
from pelton.subjects.match import LONGEST_CACHED
from pelton.wire import AckRun, Command, Hpub, Pub, PubRun, encode_msg, status_block

_REMEMBERED: Final = 16_384
_ACK: Final = "$JS.ACK."
# So many subscriptions get a message in one round of the event loop.
_AT_ONCE: Final = 1024
# So many bytes are delivered in one piece for each subscription.
_MOST_ALIKE: Final = 1 << 20
# So many subscriptions are told to a new store in one round.
_INTRODUCED_AT_ONCE: Final = 512
_MESSAGES: Final = (Pub, Hpub)
_ACKED: Final = b"+ACK"
_WILD: Final = ("*", ">")
_INFO: Final = REQUEST_INFO.encode()
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"


class _Route(NamedTuple):
    """Where a subject leads: to clients, to a service, to a stream if it is named, to other processes.

    ``is_alike``: it leads to plain subscriptions alone, each of another client, and ``head`` is how messages begin for
    them; ``is_stored``: it leads to the stream alone.
    """

    is_alike: bool
    head: bytes
    targets: Targets
    service: SubjectService | None
    stream: str
    no_ack: bool
    has_others: bool
    is_stored: bool


_NOWHERE: Final = _Route(False, b"", NO_TARGETS, None, "", False, False, False)


class ServerAccount:
    """An account of the server; ``link`` is its store, None if it has no JetStream. ``now``: monotonic seconds."""

    def __init__(
        self, name: str, choose: Callable[[Sequence[ClientSubscription]], ClientSubscription], now: Callable[[], float]
    ) -> None:
        self.name = name
        self.limits: ConnectionLimits = ConnectionLimits()
        self._now = now
        self.router: Router = Router(choose)
        self.clients: set[ClientConnection] = set()
        self.link: StoreLink | None = None
        self.crossing: AccountCrossing | None = None
        self.tracer: MessageTracer | None = None
        # What of others' traces it wants to see.
        self.tracing: TraceConfig = TraceConfig()
        # By the first token of the subjects that they answer; a client cannot subscribe in their place.
        self.services: dict[str, SubjectService] = {}
        self._routes: dict[str, _Route] = {}
        self._alike: dict[_Route, _Route] = {}
        self._departures = Departures(self.router, self.unsubscribe)
        # What is on its way to very many, and whose it is.
        self._wide: dict[WideDelivery, ClientConnection] = {}
        # That of acks, if they lead to the service alone; None if that is not known.
        self._ack_route: _Route | None = None
        self._stamp = (-1, -1)
        # What hubs are told, if the account has any.
        self.leaf: LeafInterest | None = None

    # --- clients

    def join(self, client: ClientConnection) -> None:
        self.clients.add(client)

    def leave(self, client: ClientConnection, subscriptions: dict[bytes, ClientSubscription]) -> None:
        """Remove a client, and the subscriptions that it has no more; if they are very many, in a while."""
        self.clients.discard(client)
        self._departures.begin(subscriptions)
        if self.router.leaving:
            self._forget_routes()

    def attach(self, link: StoreLink | None) -> None:
        """Have this store from now on, to be introduced, or none; what was known of routes may be wrong now."""
        if link is not self.link:
            self.link, self._stamp = link, (-1, -1)
        self._forget_routes()

    def retire(self) -> None:
        """Be served no more: no store, and no way to other accounts, is there for clients that have not left yet."""
        self.attach(None)
        self.crossing = None

    async def introduce(self) -> None:
        """Tell a store that the account has just got what clients subscribe to: some in each round of the loop."""
        hubs = self.leaf.hubs if self.leaf is not None else ()
        subscriptions = ((client, one) for client in [*self.clients, *hubs] for one in client.subscription_list)
        async for some in in_portions(subscriptions, _INTRODUCED_AT_ONCE):
            for client, one in some:
                if client.has(one):
                    self._make_known(one)

    def _make_known(self, subscription: ClientSubscription) -> None:
        if self.link is not None and subscription.known_to is not self.link:
            subscription.known_to = self.link
            self.link.interest.on_subscribe(subscription)

    @property
    def is_full(self) -> bool:
        """Whether no client may connect any more."""
        return 0 <= self.limits.max_connections <= len(self.clients)

    def excess(self) -> list[ClientConnection]:
        """Return the newest clients if there are more than there may be by now."""
        most = self.limits.max_connections
        return sorted(self.clients, key=lambda each: each.number)[most:] if most >= 0 else []

    def subscribe(self, subscription: ClientSubscription) -> None:
        self.router.add(subscription)
        self._forget(subscription.subject)
        self._make_known(subscription)
        if self.crossing is not None:
            self.crossing.on_subscription(self.name, subscription.subject)
        if self.leaf is not None:
            self.leaf.on_change(subscription, 1)

    def unsubscribe(self, subscription: ClientSubscription) -> None:
        self.router.remove(subscription)
        self._forget(subscription.subject)
        if self.link is not None and subscription.known_to is self.link:
            self.link.interest.on_unsubscribe(subscription)
        if self.crossing is not None:
            self.crossing.on_subscription(self.name, subscription.subject)
        if self.leaf is not None:
            self.leaf.on_change(subscription, -1)

    def is_settled(self, client: ClientConnection) -> bool:
        """Whether other processes know all subscriptions of a client."""
        return self.link is None or self.link.interest.is_settled(client)

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call back when other processes know of all subscriptions made so far."""
        assert self.link is not None
        self.link.interest.on_settled(call)

    def resume_consumers(self) -> None:
        """Let consumers continue: a client reads again."""
        if self.crossing is not None:
            self.crossing.poke()
        else:
            self.poke()

    def poke(self) -> None:
        """Let the account's own consumers continue."""
        if self.link is not None:
            self.link.poke()

    def hurry(self) -> None:
        """Store and settle now what clients have sent in this round."""
        if self.link is not None:
            self.link.serving.hurry()

    def look_at_push(self, subject: str) -> None:
        """Let push consumers with this deliver subject begin or end: who subscribes in other accounts has changed."""
        if self.link is not None:
            self.link.interest.look_at_push(subject)

    def importing(self, subject: str) -> list[ClientSubscription]:
        """Return the subscriptions of other accounts' clients to a deliver subject of this one."""
        return [] if self.crossing is None else self.crossing.subscriptions(self.name, subject)

    def is_answered_abroad(self, subject: str) -> bool:
        """Whether a request goes to an account whose service this one imports."""
        return self.crossing is not None and bool(self.crossing.exchange.services(self.name, subject))

    def push_abroad(self, subject: str, message: Incoming) -> None:
        """Pass what a push consumer delivers on to other accounts."""
        if self.crossing is not None:
            self.crossing.push(self.name, subject, message)

    def has_room_for(self, subject: str) -> bool:
        """Whether a client that gets messages on a subject keeps up, perhaps one of another account."""
        if self.crossing is not None and is_answer(subject):
            return self.crossing.has_room(subject)
        return any(one.client.room for one in self.router.subscriptions(subject))

    # --- messages

    def tell_no_responders(self, client: ClientConnection, subject: str, reply: str) -> None:
        """Tell a client that nobody takes its request, by one of its own subscriptions of no group."""
        targets = NO_TARGETS if "" in reply.split(".") else self.router.targets(reply)
        own = next((one for one in targets.plain if one.client is client), None)
        if own is not None:
            client.write(encode_msg(reply, own.sid, "", status_block(503, Nats_Subject=subject), b""))

    def pass_on_run(self, client: ClientConnection, commands: list[Command], begin: int, until: float) -> int:
        """Pass on the messages of a client from ``begin`` to the next other command, whose index is returned.

        What takes longer than ``until`` (seconds of the monotonic clock) ends the run sooner. A run that
        does not lead to a stream, or to acks, alone is replaced by its messages.

        Most of what a server does, without a call for each step.
        """
        self._check_routes()
        routes, link, index, size = self._routes, self.link, begin, 0
        while index < len(commands):
            command = commands[index]
            kind = type(command)
            if kind is not Pub and kind is not Hpub:
                if not isinstance(command, AckRun | PubRun):
                    break
                index += self._take_run(client, commands, index, command)
                continue
            subject, reply, data = command.subject, command.reply, command.data  # type: ignore[attr-defined]  # either
            block = command.block if kind is Hpub else None  # type: ignore[attr-defined]  # it is one
            route = routes.get(subject) or self._route(subject)
            if route.is_alike and (alike := self._deliver_alike(client, commands, index, route.targets)):
                index += alike
                if self._now() > until:
                    break
                continue
            index += 1
            size += len(data) + len(block or b"")
            if block is None or not self._is_traced(block):
                if route.is_stored and link is not None:
                    kept = Outgoing(subject, data, _as_stored(block) if block is not None else None)
                    link.storing.add(client, kept, "" if route.no_ack else reply, route.stream)
                    continue
                service = route.service if route is self._ack_route else None
                if service is not None and service.take(Published(client, subject, reply, block, data)):
                    continue
            if not self.pass_on(client, subject, reply, block, data) and reply and client.options.no_responders:
                self.tell_no_responders(client, subject, reply)
            if client.is_held or self._now() > until:
                break
            self._check_routes()
        client.in_msgs += index - begin
        client.in_bytes += size
        return index

    def _take_run(self, client: ClientConnection, commands: list[Command], index: int, run: AckRun | PubRun) -> int:
        """Settle or store what the run at ``index`` holds and return 1, or put its messages in its place: return 0."""
        link, subjects = self.link, run.subjects if isinstance(run, AckRun) else [run.subject]
        route, size = self._routes.get(subjects[0]) or self._route(subjects[0]), 0
        if isinstance(run, PubRun) and link is not None and route.is_stored:
            count, size = (
                len(run.replies),
                link.storing.add_run(client, run, route.stream, is_answered=not route.no_ack),
            )
        elif isinstance(run, AckRun) and link is not None and route is self._ack_route and link.take_acks(subjects):
            count, size = len(subjects), len(_ACKED) * len(subjects)
        else:
            commands[index : index + 1] = run.messages
            return 0
        # The run itself is counted with the other commands.
        client.in_msgs += count - 1
        client.in_bytes += size
        return 1

    def _deliver_alike(
        self, client: ClientConnection, commands: Sequence[Command], begin: int, targets: Targets
    ) -> int:
        """Deliver the messages from ``begin`` on that lead to the same clients, to each in one piece.

        Returns how many there are: 0 if the first has to take the longer way.
        """
        routes, most, size, takes_headers = self._routes, _MOST_ALIKE // len(targets.plain), 0, True
        for one in targets.plain:
            # What a client may receive can change at any time.
            if one.is_cut or one.limit or (one.client is client and not client.echo):
                return 0
            takes_headers = takes_headers and one.client.options.headers
        replies: list[str] = []
        # What stands between the ids of the subscription.
        pieces: list[bytes] = []
        tail = b""
        for index in range(begin, len(commands)):
            command = commands[index]
            if not isinstance(command, _MESSAGES) or size > most:
                break
            data, reply, route = command.data, command.reply, routes.get(command.subject)
            if route is None or route.targets is not targets or not route.is_alike:
                break
            if type(command) is Hpub:
                if not takes_headers or self._is_traced(command.block):
                    break
                pieces.append(b"%bH%b" % (tail, route.head))
                tail = tail_of(reply, command.block, data)
                size += len(command.block)
            else:
                pieces.append(tail + route.head)
                tail = tail_of(reply, None, data) if reply else b" %d\r\n%b\r\n" % (len(data), data)
            replies.append(reply)
            size += len(data)
        if replies:
            pieces.append(tail)
            for one in targets.plain:
                one.client.deliver_run(one, one.sid.join(pieces), size, replies)
            client.in_bytes += size
        return len(replies)

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
    ) -> bool:
        """Pass on a message of a client, perhaps one of another account; return whether somebody takes it.

        A message of another account is of a stream that this one imports, or of a service that is asked. With
        ``queues`` it is for these groups alone: a hub has chosen members elsewhere for the others.
        """
        self._check_routes()
        route, found = self._routes.get(subject) or self._route(subject), 0
        trace = None
        if block is not None and not (is_imported or is_asked) and self._is_traced(block):
            trace = self._trace(client, route, subject, block, data)
            if trace is not None and trace.only:
                return True
        if route.targets.any:
            frame, targets = MessageFrame(subject, reply, block, data), route.targets
            if len(targets.plain) > _AT_ONCE:
                found = self._deliver_widely(targets.plain, subject, frame, client)
                targets = targets._replace(plain=())
            found += self.router.deliver_for(targets, subject, frame, client, queues)
        if route.service is not None and route.service.take(Published(client, subject, reply, block, data)):
            return True
        if self.crossing is not None and not is_imported:
            if is_answer(subject):
                return self.crossing.answer(self.name, subject, subject, reply, block, data)
            found += self.crossing.pass_on(self.name, client, subject, reply, block, data, trace)
        if self.link is not None:
            if route.stream:
                answered = "" if route.no_ack else reply
                if block is not None:
                    block = _as_stored(block, is_traced=trace is not None)
                self.link.storing.add(client, Outgoing(subject, data, block), answered, route.stream)
                return True
            if route.has_others:
                self.link.announcing.add(Incoming(subject, data, block, reply))
                return True
        return bool(found)

    def _deliver_widely(
        self, targets: Sequence[ClientSubscription], subject: str, frame: MessageFrame, client: ClientConnection
    ) -> bool:
        """Deliver to very many, so many in a round of the event loop; return whether somebody gets it.

        What its client sends next waits until all have it: what one client sends arrives in order.
        """
        delivery = WideDelivery(targets, subject, frame, client)
        client.hold()
        self._wide[delivery] = client
        self._go_on(delivery)
        # Only the client of a request is told if nobody gets it.
        return not frame.reply or client.echo or any(one.client is not client for one in targets)

    def _go_on(self, delivery: WideDelivery) -> None:
        if delivery in self._wide:
            if delivery.deliver(_AT_ONCE):
                asyncio.get_running_loop().call_soon(self._go_on, delivery)
            else:
                self._wide.pop(delivery).release()

    def finish(self) -> None:
        """Deliver at once what is on its way."""
        for delivery, client in list(self._wide.items()):
            while delivery.deliver(_AT_ONCE):
                pass
            del self._wide[delivery]
            client.release()

    def forget(self) -> None:
        """Do nothing more for clients that have left: the store is closed."""
        self._departures.forget()

    def _is_traced(self, block: bytes) -> bool:
        """Whether it may be told where a message with these headers goes."""
        return bool(self.tracing.destination) or TRACE in block

    def _trace(
        self, client: ClientConnection, route: _Route, subject: str, block: bytes, data: bytes
    ) -> TraceRequest | None:
        """Tell where a message goes, if it or its account asks for that (ADR-41); return the request."""
        asked = None if self.tracer is None else self.tracer.request_of(client, block, self.tracing)
        if asked is not None and self.tracer is not None:
            crossed = self.crossing.trace(self.name, subject) if self.crossing is not None else []
            told = self.tracer.describe(client, subject, block, data, route.targets, route.stream, crossed)
            self.answer(asked.destination, None, told)
        return asked

    def receivers_of(self, subject: str) -> tuple[Targets, str]:
        """Return which clients get a message, and the stream that stores it, or an empty text."""
        self._check_routes()
        route = self._routes.get(subject) or self._route(subject)
        return route.targets, route.stream

    # --- routes

    def _check_routes(self) -> None:
        """Forget the routes if streams, or what other processes subscribe to, have changed."""
        if self.link is not None and (stamp := self.link.serving.stamp) != self._stamp:
            self._stamp = stamp
            self._forget_routes()
            if self.leaf is not None:
                self.leaf.refresh()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._alike.clear()
        self._ack_route = None

    def _forget(self, subject: str) -> None:
        """Forget the routes that a subscription changes."""
        self._ack_route = None
        if has_wildcard(subject):
            self._routes.clear()
        else:
            self._routes.pop(subject, None)

    def _route(self, subject: str) -> _Route:
        """Find where a subject leads."""
        if subject.startswith(_ACK):
            if self._ack_route is not None:
                # Each ack has a subject of its own: there is nothing to look up, and nothing to remember.
                return self._ack_route
            if self._is_for_service_alone(f"{_ACK}>"):
                route = _Route(False, b"", NO_TARGETS, self.services.get("$JS"), "", False, False, False)
                self._ack_route = route
                return route
        if "" in subject.split("."):
            # As on NATS, no subscription matches it, nor a stream or an API.
            return _NOWHERE
        targets, link, service, config, has_others = self.router.targets(subject), self.link, None, None, False
        if subject.startswith("$"):
            service = self.services.get(subject.partition(".")[0])
        if link is not None:
            config = link.serving.stream_of(subject)
            has_others = config is None and link.serving.has_others(subject)
        is_alone = service is None and self.crossing is None
        is_alike = is_alone and config is None and not has_others and targets.is_apart
        head = f"MSG {subject} ".encode() if is_alike else b""
        stream, no_ack = (config.name, config.no_ack) if config is not None else ("", False)
        is_stored = is_alone and bool(stream) and not targets.any
        found = _Route(is_alike, head, targets, service, stream, no_ack, has_others, is_stored)
        if not targets.any:
            # Subjects that nobody subscribes to lead to few places.
            found = self._alike.setdefault(found, found)
        if len(subject) <= LONGEST_CACHED:
            if len(self._routes) >= _REMEMBERED:
                self._routes.clear()
            self._routes[subject] = found
        return found

    def _is_for_service_alone(self, subjects: str) -> bool:
        """Whether nobody else may receive any subject that matches a filter."""
        if self.crossing is not None or self.router.overlaps(subjects):
            return False
        return self.link is None or not self.link.serving.reaches(subjects)

    def send(self, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> int:
        """Deliver a message of the server's own, or of the store, to the clients that subscribe to ``route``."""
        targets = self.router.targets(route)
        if not targets.any:
            if self.crossing is not None and is_answer(route):
                return int(self.crossing.answer(self.name, route, subject, reply, block, data))
            return 0
        only = targets.only
        if only is not None and not only.is_cut:
            # Most answers: worth saving some calls.
            size = len(data) + len(block or b"")
            block = block if only.client.options.headers else None
            only.client.deliver_run(only, encode_msg(subject, only.sid, reply, block, data), size, (reply,))
            return 1
        return self.router.deliver_to(targets, route, MessageFrame(subject, reply, block, data))

    def send_all(self, route: str, messages: Sequence[Delivered]) -> None:
        """Deliver what the store has for the clients that subscribe to ``route``, in its order."""
        if self.crossing is None or self.router.has_subscriber(route):
            self.router.deliver_all(route, messages)
            return
        for message in messages:
            self.send(route, message.subject, message.reply, message.headers, message.data)

    def send_answers(self, replies: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Send the server's own answers, each to the subject on which it is awaited, in their order."""
        only = None
        for parent, answers in groupby(zip(replies, bodies, strict=True), _parent):
            only = self.router.only_below(parent)
            if only is None or only.is_cut or only.limit:
                only = None
                for reply, data in answers:
                    self.send(reply, reply, "", None, data)
                continue
            run, size, sid = list[bytes](), 0, only.sid
            for reply, data in answers:
                size += len(data)
                run.append(b"MSG %b %b %d\r\n%b\r\n" % (reply.encode(), sid, len(data), data))
            only.client.deliver_run(only, b"".join(run), size, [""] * len(run))
        if only is not None:
            only.client.flush()

    def receives(self, subject: str) -> bool:
        """Whether a client receives messages on a subject, perhaps one of another account that waits for an answer."""
        return self.router.has_subscriber(subject) or (self.crossing is not None and self.crossing.awaits(subject))

    def answer(self, reply: str, block: bytes | None, data: bytes) -> None:
        """Answer a request: to a client of this server, or wherever else the request came from."""
        if not reply:
            return
        # A hub learns of what is new before it hears of it.
        self._check_routes()
        if not self.send(reply, reply, "", block, data) and self.link is not None and not self.receives(reply):
            # A request may name a stream's subject as the place for its answer, or come from another process.
            self.link.pass_on(Incoming(reply, data, block))


def _parent(answer: tuple[str, bytes]) -> str:
    """Return all but the last token of a subject, with its dot; an empty text if that would be a wildcard."""
    subject, _ = answer
    return "" if subject[-1:] in _WILD else subject[: subject.rfind(".") + 1]


def _as_stored(block: bytes, *, is_traced: bool = False) -> bytes | None:
    """Return the headers as a stream keeps them; as on NATS, not who asked a service."""
    if _INFO in block:
        block = headers.without_headers(block, REQUEST_INFO)
    if is_traced:
        block = without_trace(block, is_traced=True)
    return None if block == _NO_HEADERS else block
