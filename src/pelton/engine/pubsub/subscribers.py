"""Who receives published messages: subscribers of this process, and the rows of all subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from pelton.api import Incoming

RELAYED: Final = " relayed"
"""The queue group of rows that cover the subscriptions of a server's clients. No group of a user has a space."""


class Subscriber(Protocol):
    """Receives the messages of one subscription.

    ``capacity`` is how many more it would like to hold, ``reserve`` how many more it can hold at most.
    ``route`` is the subject by which messages found the subscription: a push consumer's is its deliver subject.
    ``is_relay``: it passes messages on to clients of this process.
    """

    is_relay: bool

    def receive(self, route: str, messages: Sequence[Incoming]) -> None: ...

    @property
    def capacity(self) -> int: ...
    @property
    def reserve(self) -> int: ...


class LocalDelivery(NamedTuple):
    """Messages for a subscriber of this process."""

    subscriber: Subscriber
    route: str
    messages: Sequence[Incoming]


class SubscriptionRow(NamedTuple):
    """The row of a subscription of any process, in the order in which they were made."""

    id: int
    owner: str
    subject: str
    queue: str

    @property
    def is_shared(self) -> bool:
        """Whether one member of a group gets each message."""
        return self.queue not in ("", RELAYED)
