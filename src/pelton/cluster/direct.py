"""Direct get of a cluster (ADR-31): the frames of ``api/direct_frames.py``, collected.

A server older than 2.11, which knows no batches, sends one message that does not announce others.
"""

from __future__ import annotations

from pelton.api import DirectGet, DirectReply, api_error
from pelton.api.direct_frames import (
    BAD_REQUEST,
    BAD_REQUEST_CODE,
    END,
    NOT_FOUND,
    DirectFrame,
    direct_question,
    is_batched,
    note_end,
    stored_in,
)
from pelton.api.errors import from_reply
from pelton.cluster.connection import Answer, Connection
from pelton.cluster.status import NO_RESPONDERS


async def direct_get(connection: Connection, prefix: str, stream: str, request: DirectGet) -> DirectReply | None:
    """Send the request and collect the replies; None if the stream has no responders. Raises ApiError, Interrupted."""
    subject, body = direct_question(f"{prefix}.DIRECT.GET.{stream}", request)
    if not request.batch and not request.multi_last:
        answers = [await connection.ask(subject, body, again=True)]
    else:
        answers = []
        await connection.gather(subject, body, lambda answer: _is_last(answers, answer))
    last = answers[-1]
    if last.status == NO_RESPONDERS:
        return None
    if last.status not in (0, END):
        raise _refusal(last, stream)
    return _reply(answers)


def _is_last(answers: list[Answer], answer: Answer) -> bool:
    answers.append(answer)
    return answer.status != 0 or not is_batched(answer.block)


def _refusal(answer: Answer, stream: str) -> Exception:
    if answer.status == NOT_FOUND:
        return api_error("JSNoMessageFoundErr", stream=stream)
    code = BAD_REQUEST_CODE if answer.status == BAD_REQUEST else 0
    return from_reply(answer.status, code, answer.text, stream=stream)


def _reply(answers: list[Answer]) -> DirectReply:
    reply = DirectReply(
        [stored_in(DirectFrame(answer.block or b"", answer.data)) for answer in answers if not answer.status]
    )
    end = answers[-1]
    if end.status == END and end.block is not None:
        note_end(reply, end.block)
    return reply
