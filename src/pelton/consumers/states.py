"""The states of a delivery, and the state to which each kind of ack leads.

For every consumer, a message is in one of these states; its rows determine which::

    (ahead)    after the cursor: no row
    parked     passed by the cursor, behind a held message of its subject: a claim that is not held
    ready      next of its subject, which waits for its turn, not delivered yet: a row in ``ready``
    delivered  held by a client, for the first time or again: a row in ``pending`` that falls due later
    due        may be redelivered, its last holder may still ack: a row in ``pending`` that is due
    acked      settled: no row behind the cursor
    termed     the same, for a message that must not be redelivered
    exhausted  delivered ``max_deliver`` times, and not settled: a row in ``exhausted`` with interest retention
    removed    limits, a purge or a deletion took it from the stream: no longer awaited once the consumer notices; a row
               in ``pending_removed`` keeps its delivery until the ack, or a pull after the end of its ack wait. If its
               holder keeps a subject, it stays in ``pending`` until then

An ack names the delivery it belongs to. An ack of an earlier delivery, or of a message that is settled or exhausted,
changes nothing and is rejected; an ack of a removed message is accepted in time, and harmless later. Everything else
that moves a message (pulls, time, limits) moves rows in SQL: ``docs/consumers.md`` draws all of it, and a test plays
each line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pelton.api import AckKind

Answered = Literal["delivered", "due", "acked", "termed"]
DeliveryState = Answered | Literal["parked", "ready", "exhausted", "removed"]

AFTER_ACK: Final[Mapping[AckKind, Answered]] = {
    "ack": "acked",
    "term": "termed",
    "nak": "due",
    "progress": "delivered",
}
SETTLED: Final[frozenset[Answered]] = frozenset({"acked", "termed"})
