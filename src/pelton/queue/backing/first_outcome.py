"""The first outcome of a job counts: on a cluster, whoever stores one does it on condition that there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pelton.api import AckRejectedError, Backend, Outgoing, headers
from pelton.jet.readable import at_leader

if TYPE_CHECKING:
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.records import Ended


def as_first(names: QueueNames, outcome: Outgoing) -> Outgoing:
    """Return the message of an outcome, which is refused if the job has another one (WrongLastSequenceError)."""
    job_id = outcome.subject.rpartition(".")[2]
    block = headers.encode(
        {
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: names.outcomes_of(job_id),
        }
    )
    if outcome.headers is not None and (msg_id := headers.first(outcome.headers, headers.MSG_ID)) is not None:
        block = headers.with_value(block, headers.MSG_ID, msg_id)
    return Outgoing(outcome.subject, outcome.data, block)


def as_only(message: Outgoing) -> Outgoing:
    """Return a message that is refused if there is one of its subject (WrongLastSequenceError)."""
    block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"})
    return Outgoing(message.subject, message.data, block)


def guarded(names: QueueNames, ended: Ended) -> Sequence[Outgoing]:
    """Return the messages that end an attempt; if it ends the job, its outcome has to be the first."""
    messages = ended.messages
    return [*messages[:-1], as_first(names, messages[-1])] if ended.is_over else messages


async def refusal_of(backend: Backend, names: QueueNames, ended: Ended) -> AckRejectedError | None:
    """Return why an attempt has no effect whose outcome was refused; None if that very outcome is stored.

    It is when a publish was repeated: a server checks the condition before it knows the message again.
    """
    job_id = ended.record.subject.rpartition(".")[2]
    stored = await at_leader(backend, names.history, last_by_subj=names.outcomes_of(job_id))
    if stored is not None and (stored.subject, stored.data) == (ended.record.subject, ended.record.data):
        return None
    delivered = ended.delivered
    reason = "the job was cancelled meanwhile"
    return AckRejectedError(delivered.stream, delivered.consumer, delivered.seq, reason)
