"""One account: its clients, who gets what they publish, and its store, if it has one.

A message of a client goes to the account's subscribers at once, as on NATS; then to the stream that takes its subject,
or else to subscribers in other processes that have the same store open. If nobody takes a request, its client is told
(status 503). Subjects of services (``$JS.API.>``) are answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pelton.api import Incoming, Outgoing
from pelton.server.jetstream.link import StoreLink
from pelton.server.ports import Client, Published, SubjectService
from pelton.server.router import ClientSubscription, MessageFrame, Router
from pelton.wire import status_block


class ServerAccount:
    """An account of the server; ``link`` is its store, None if it has no JetStream."""

    def __init__(self, name: str, choose: Callable[[Sequence[ClientSubscription]], ClientSubscription]) -> None:
        self.name = name
        self.router = Router(choose)
        self.clients: set[Client] = set()
        self.link: StoreLink | None = None
        # By the first token of the subjects that they answer; a client cannot subscribe in their place.
        self.services: dict[str, SubjectService] = {}

    # --- clients

    def join(self, client: Client) -> None:
        """Add a client."""
        self.clients.add(client)

    def leave(self, client: Client) -> None:
        """Remove a client, whose subscriptions have ended."""
        self.clients.discard(client)

    def subscribe(self, subscription: ClientSubscription) -> None:
        """Add a subscription of a client."""
        self.router.add(subscription)
        if self.link is not None:
            self.link.interest.added(subscription)

    def unsubscribe(self, subscription: ClientSubscription) -> None:
        """Remove a subscription of a client."""
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

    def publish(self, client: Client, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        """Pass on what a client publishes."""
        found = 0
        if self.router.has_subscriber(subject):
            found = self.router.deliver(subject, MessageFrame(subject, reply, block, data), client)
        if subject.startswith("$"):
            service = self.services.get(subject.partition(".")[0])
            if service is not None and service.take(Published(client, subject, reply, block, data)):
                return
        link = self.link
        if link is not None:
            config = link.serving.stream_of(subject)
            if config is not None:
                link.storing.add(client, Outgoing(subject, data, block), "" if config.no_ack else reply, config.name)
                return
            if link.serving.has_others(subject):
                link.announcing.add(Incoming(subject, data, block, reply))
                return
        if not found and reply and client.options.no_responders:
            self.send(reply, reply, "", status_block(503, Nats_Subject=subject), b"")

    def send(self, route: str, subject: str, reply: str, block: bytes | None, data: bytes) -> int:
        """Deliver a message of the server's own, or of the store, to the clients that subscribe to ``route``."""
        return self.router.deliver(route, MessageFrame(subject, reply, block, data)) if self._reaches(route) else 0

    def answer(self, reply: str, block: bytes | None, data: bytes) -> None:
        """Answer a request: to a client of this server, or wherever else the request came from."""
        if not reply:
            return
        if self.router.has_subscriber(reply):
            self.send(reply, reply, "", block, data)
        elif self.link is not None:
            # A request may name a stream's subject as the place for its answer, or come from another process.
            self.link.pass_on(Incoming(reply, data, block))

    def _reaches(self, route: str) -> bool:
        return self.router.has_subscriber(route)
