"""Direct get of a cluster (ADR-31): messages come unchanged, with their metadata in added headers.

One message is one reply. Of many, each is its own reply to the same request, and a status message comes last; a server
older than 2.11, which knows no batches, sends one message that does not announce others.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pelton.api import DirectGet, DirectReply, StoredMessage, api_error, headers, parse_rfc3339
from pelton.api.errors import from_reply
from pelton.cluster.connection import Answer, Connection
from pelton.cluster.status import NO_RESPONDERS
from pelton.subjects import is_subject

_END: Final = 204
_NOT_FOUND: Final = 404
_BAD_REQUEST: Final = 408
_BAD_REQUEST_CODE: Final = 10003
_ADDED: Final = f"\r\n{headers.STREAM}: ".encode()
_BATCHED: Final = f"\r\n{headers.NUM_PENDING}: ".encode()
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"
_encode: Final = msgspec.json.Encoder().encode


async def direct_get(connection: Connection, prefix: str, stream: str, request: DirectGet) -> DirectReply | None:
    """Send the request and collect the replies; None if the stream has no responders. Raises ApiError, Interrupted."""
    subject, body = _question(f"{prefix}.DIRECT.GET.{stream}", request)
    if not request.batch and not request.multi_last:
        answers = [await connection.ask(subject, body, again=True)]
    else:
        answers = []
        await connection.gather(subject, body, lambda answer: _is_last(answers, answer))
    last = answers[-1]
    if last.status == NO_RESPONDERS:
        return None
    if last.status not in (0, _END):
        raise _refusal(last, stream)
    return _reply(answers)


def _question(subject: str, request: DirectGet) -> tuple[str, bytes]:
    """Return subject and payload: the last message of a subject is requested in the API subject, for permissions."""
    last = request.last_by_subj
    if last and is_subject(last) and request == DirectGet(last_by_subj=last):
        return f"{subject}.{last}", b""
    return subject, _encode(request)


def _is_last(answers: list[Answer], answer: Answer) -> bool:
    answers.append(answer)
    return answer.status != 0 or answer.block is None or _BATCHED not in answer.block


def _refusal(answer: Answer, stream: str) -> Exception:
    if answer.status == _NOT_FOUND:
        return api_error("JSNoMessageFoundErr", stream=stream)
    code = _BAD_REQUEST_CODE if answer.status == _BAD_REQUEST else 0
    return from_reply(answer.status, code, answer.text, stream=stream)


def _reply(answers: list[Answer]) -> DirectReply:
    reply = DirectReply([_message(answer) for answer in answers if not answer.status])
    end = answers[-1]
    if end.status == _END and end.block is not None:
        told = headers.decode(end.block)
        reply.num_pending = int(told.get(headers.NUM_PENDING, 0))
        reply.last_seq = int(told.get(headers.LAST_SEQUENCE, 0))
        reply.up_to_seq = int(told.get(headers.UP_TO_SEQUENCE, 0))
    return reply


def _message(answer: Answer) -> StoredMessage:
    """Return a message with the headers it was stored with, without those the server adds behind them."""
    stored, _, added = (answer.block or b"").rpartition(_ADDED)
    facts = headers.decode(b"NATS/1.0" + _ADDED + added)
    hdrs = stored + b"\r\n\r\n"
    return StoredMessage(
        facts[headers.SUBJECT],
        int(facts[headers.SEQUENCE]),
        parse_rfc3339(facts[headers.TIME_STAMP]),
        b"" if hdrs == _NO_HEADERS else hdrs,
        answer.data,
    )
