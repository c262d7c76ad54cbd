"""Acknowledgements to a cluster, each confirmed by the server.

The subject of an ack is the reply subject of its delivery, rebuilt here from the fields that identify the
delivery. A NATS server confirms an ack that comes late, or twice, like any other: only embedded stores raise
``AckRejectedError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pelton.api import AckOp, Outgoing, PeltonError
from pelton.cluster.connection import Answer, Connection, Interrupted

_WORDS: Final = {"ack": b"+ACK", "nak": b"-NAK", "progress": b"+WPI", "term": b"+TERM"}


def ack_subject(stream: str, consumer: str, ack: AckOp) -> str:
    """Return the subject that acknowledges a delivery; time and counts in it only inform."""
    return f"$JS.ACK.{stream}.{consumer}.{ack.num_delivered}.{ack.seq}.{ack.consumer_seq}.0.0"


def ack_payload(ack: AckOp) -> bytes:
    """Return the payload of an ack (ADR-13 and -15)."""
    word = _WORDS[ack.kind]
    if ack.kind == "nak" and ack.delay_ns:
        return b'%b {"delay": %d}' % (word, ack.delay_ns)
    if ack.kind == "term" and ack.reason:
        return b"%b %b" % (word, ack.reason.encode())
    return word


async def ack_all(
    connection: Connection, stream: str, consumer: str, acks: Sequence[AckOp]
) -> list[PeltonError | Interrupted | None]:
    """Send acks, all in flight at once; one entry each: None, why it failed, or Interrupted."""
    answers = await connection.ask_all([Outgoing(ack_subject(stream, consumer, ack), ack_payload(ack)) for ack in acks])
    return [_outcome(answer) for answer in answers]


class NoResponder(Interrupted):
    """No consumer takes this ack: the consumer is gone, or its ack policy is none."""


def _outcome(answer: Answer | Exception) -> PeltonError | Interrupted | None:
    if isinstance(answer, PeltonError | Interrupted):
        return answer
    if isinstance(answer, Exception):
        raise answer
    return NoResponder() if answer.is_unheard else None
