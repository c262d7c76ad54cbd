"""The states of a delivery, and what each kind of ack makes of it.

For every consumer a message is in one of these states; where it is kept says which::

    (ahead)    after the cursor: no row
    parked     met, behind a held message of its subject: a claim that is not held
    ready      its turn has come, nobody has got it yet: a row in ``ready``
    delivered  somebody has it, for the first time or again: a row in ``pending`` that falls due later
    due        it may be delivered again, its last holder may still answer: a row in ``pending`` that is due
    acked      settled: no row behind the cursor
    termed     the same, for a message that must not come back
    exhausted  delivered ``max_deliver`` times, and not settled: a row in ``exhausted`` where interest keeps messages
    removed    limits, a purge or a deletion took it from the stream: awaited no more from the next look on; a row in
               ``pending_removed`` remembers whose it was until the answer, or a pull after the end of its wait. Where
               its holder keeps a subject, it stays in ``pending`` until then

An ack names the delivery it belongs to. One that belongs to an earlier delivery, or to a message that is settled or
given up, moves nothing and is told so; one of a removed message in time is the answer to it, and harmless later. What
else moves a message (pulls, time, limits) moves rows in SQL: ``docs/consumers.md`` draws all of it, and a test plays
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
