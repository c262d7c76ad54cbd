"""Batches that a server stores together or not at all (ADR-50).

All messages are sent at once and all are answered, so that a refusal has a reason; only the reply to the last one is an
acknowledgement. If the last was not sent, or is refused temporarily, nothing was stored, and the batch is sent again
under another id. If the reply to the last one is lost, the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pelton.api import Outgoing, PeltonError, PubAck, headers
from pelton.cluster.connection import Connection, Interrupted, NotSent
from pelton.cluster.publisher import acked, unknown
from pelton.cluster.retry import Retry


async def publish_atomic(
    connection: Connection,
    messages: Sequence[Outgoing],
    new_id: Callable[[], str],
    passes: Callable[[PeltonError], Awaitable[bool]],
) -> PubAck:
    """Store messages together or not at all; raises as `Backend.publish_atomic`."""
    retry = Retry(connection)
    while True:
        try:
            return await _once(connection, messages, new_id())
        except NotSent as lost:
            reason: Exception = lost
        except Interrupted:
            raise unknown(connection, len(messages)) from None
        except PeltonError as error:
            if not await passes(error):
                raise
            reason = error
        await retry.after(reason)


async def _once(connection: Connection, messages: Sequence[Outgoing], batch: str) -> PubAck:
    answers = await connection.ask_all(_as_batch(messages, batch))
    for message, answer in zip(messages, answers, strict=True):
        if not isinstance(answer, Exception):
            ack = acked(message.subject, answer)
        elif not isinstance(answer, Interrupted):
            raise answer
    last = answers[-1]
    if isinstance(last, Exception):
        raise last
    return ack


def _as_batch(messages: Sequence[Outgoing], batch: str) -> list[Outgoing]:
    requests: list[Outgoing] = []
    for number, message in enumerate(messages, start=1):
        marked = headers.with_value(message.headers, headers.BATCH_ID, batch)
        marked = headers.with_value(marked, headers.BATCH_SEQUENCE, str(number))
        if number == len(messages):
            marked = headers.with_value(marked, headers.BATCH_COMMIT, "1")
        requests.append(Outgoing(message.subject, message.data, marked))
    return requests
