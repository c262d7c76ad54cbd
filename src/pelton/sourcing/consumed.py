"""The durable consumer from which a source takes its messages, instead of from the stream itself (ADR-60)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from pelton.api import ApiError
from pelton.storage import MessageRow

Kind = Literal["Source", "Mirror"]


class Consumed(Protocol):
    """The consumer that a source names; it decides where the source starts, what it takes, and when."""

    def is_of(self, name: str) -> bool:
        """Whether it is a consumer of this name, and can be used."""

    def offer_again(self) -> None:
        """Let everything that was delivered and is not acknowledged be delivered again."""

    def take(self, most: int) -> Sequence[MessageRow]:
        """Deliver the next messages to the source, in this transaction; none if the consumer cannot be used."""

    def settle(self, sequences: Collection[int]) -> None:
        """Acknowledge delivered messages."""

    def give_back(self, sequences: Collection[int]) -> None:
        """Let delivered messages be delivered again."""

    def is_ready(self) -> bool:
        """Whether it might deliver now; a cheap check."""

    def next_due(self) -> int:
        """Return when it might deliver without a change of the store: a pause, a replay; ``NEVER`` if not at all."""

    def num_pending(self) -> int:
        """Return how many messages it has yet to deliver."""

    def problem(self, kind: Kind) -> ApiError | None:
        """Return why it cannot be used."""
