"""Acknowledgements to a cluster, each confirmed by the server.

The subject of an ack is the reply subject of its delivery, rebuilt from the fields that identify the delivery. A NATS
server confirms an ack that comes late, or twice, like any other: only embedded stores raise ``AckRejectedError``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pelton.api import AckOp, Outgoing, PeltonError
from pelton.api.acks import ack_payload, ack_subject
from pelton.cluster.connection import Answer, Connection, Interrupted


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
