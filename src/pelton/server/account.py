"""One account: its clients, who gets what they publish, and its store, if it has one.

A message of a client goes to the account's subscribers at once, as on NATS; then to the stream that takes its subject,
or else to subscribers in other processes that have the same store open. If nobody takes a request, its client is told
(status 503). Subjects of services (``$JS.API.>``) are answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pelton.api import Incoming, Outgoing
from pelton.server.accounts import AccountUsage
from pelton.server.crossing import AccountCrossing, is_answer
from pelton.server.jetstream.link import StoreLink
from pelton.server.ports import Client, Published, SubjectService
from pelton.server.router import ClientSubscription, MessageFrame, Router
from pelton.wire import status_block

_REMEMBERED: Final = 65_536


class _Beyond(NamedTuple):
    """Where a subject leads besides the server's clients: to a stream, if it is named, or to other processes."""

    stream: str
    no_ack: bool
    has_others: bool


_NOWHERE: Final = _Beyond("", False, False)
_WITH_OTHERS: Final = _Beyond("", False, True)


class ServerAccount:
    """An account of the server; ``link`` is its store, None if it has no JetStream."""

    def __init__(
        self,
        name: str,
        choose: Callable[[Sequence[ClientSubscription]], ClientSubscription],
        usage: AccountUsage,
    ) -> None:
        self.name = name
        self.usage = usage
        self.router = Router(choose)
        self.clients: set[Client] = set()
        self.link: StoreLink | None = None
        self.crossing: AccountCrossing | None = None
        # By the first token of the subjects that they answer; a client cannot subscribe in their place.
        self.services: dict[str, SubjectService] = {}
        self._known: dict[str, _Beyond] = {}
        self._stamp = (-1, -1)

    # --- clients

    def join(self, client: Client) -> None:
        """Add a client."""
        self.usage.connections += 1
        self.clients.add(client)

    def leave(self, client: Client) -> None:
        """Remove a client, whose subscriptions have ended."""
        if client in self.clients:
            self.usage.connections -= 1
            self.clients.remove(client)

    def subscribe(self, subscription: ClientSubscription) -> None:
        """Add a subscription of a client."""
        self.usage.subscriptions += 1
        self.router.add(subscription)
        if self.link is not None:
            self.link.interest.added(subscription)

    def unsubscribe(self, subscription: ClientSubscription) -> None:
        """Remove a subscription of a client."""
        self.usage.subscriptions -= 1
        self.router.remove(subscription)
        if self.link is not None:
            self.link.interest.removed(subscription)

    @property
    def is_settled(self) -> bool:
        """Whether other processes know of all subscriptions."""
        return self.link is None or self.link.interest.is_settled

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call back when other processes know of all subscriptions made so far."""
        assert self.link is not None
        self.link.interest.on_settled(call)

    def has_room(self) -> None:
        """Let push consumers continue: a client reads again."""
        if self.link is not None:
            self.link.poke()

    # --- messages

    def tell_no_responders(self, subject: str, reply: str) -> None:
        """Tell a client that nobody takes its request."""
        self.send(reply, reply, "", status_block(503, Nats_Subject=subject), b"")

    def pass_on(
        self, client: Client, subject: str, reply: str, block: bytes | None, data: bytes, *, is_imported: bool = False
    ) -> bool:
        """Pass on a message of a client, perhaps one of another account; return whether somebody takes it."""
        found, router = 0, self.router
        targets = router.targets(subject)
        if targets.any:
            found = router.deliver_to(targets, subject, MessageFrame(subject, reply, block, data), client)
        if subject.startswith("$"):
            service = self.services.get(subject.partition(".")[0])
            if service is not None and service.take(Published(client, subject, reply, block, data)):
                return True
        if self.crossing is not None and not is_imported:
            if is_answer(subject):
                return self.crossing.answer(self.name, subject, subject, reply, block, data)
            found += self.crossing.pass_on(self.name, client, subject, reply, block, data)
        link = self.link
        if link is not None:
            beyond = self._beyond(subject, link)
            if beyond.stream:
                answered = "" if beyond.no_ack else reply
                link.storing.add(client, Outgoing(subject, data, block), answered, beyond.stream)
                return True
            if beyond.has_others:
                link.announcing.add(Incoming(subject, data, block, reply))
                return True
        return bool(found)

    def _beyond(self, subject: str, link: StoreLink) -> _Beyond:
        """Return where a subject leads besides this server's clients."""
        stamp = link.serving.stamp
        if stamp != self._stamp:
            self._stamp = stamp
            self._known.clear()
        found = self._known.get(subject)
        if found is None:
            config = link.serving.stream_of(subject)
            if config is not None:
                found = _Beyond(config.name, config.no_ack, False)
            else:
                found = _WITH_OTHERS if link.serving.has_others(subject) else _NOWHERE
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def send(self, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> int:
        """Deliver a message of the server's own, or of the store, to the clients that subscribe to ``route``."""
        targets = self.router.targets(route)
        if not targets.any:
            if self.crossing is not None and is_answer(route):
                return int(self.crossing.answer(self.name, route, subject, reply, block, data))
            return 0
        return self.router.deliver_to(targets, route, MessageFrame(subject, reply, block, data))

    def receives(self, subject: str) -> bool:
        """Whether a client receives messages on a subject, perhaps one of another account that waits for an answer."""
        return self.router.has_subscriber(subject) or (self.crossing is not None and self.crossing.awaits(subject))

    def answer(self, reply: str, block: bytes | None, data: bytes) -> None:
        """Answer a request: to a client of this server, or wherever else the request came from."""
        if not reply:
            return
        if self.receives(reply):
            self.send(reply, reply, "", block, data)
        elif self.link is not None:
            # A request may name a stream's subject as the place for its answer, or come from another process.
            self.link.pass_on(Incoming(reply, data, block))
