"""Reads of a cluster: direct gets (ADR-31), and looks through a stream, message by message.

**Direct get of a cluster (ADR-31): the frames of ``api/direct_frames.py``, collected.** A server older than 2.11, which
knows no batches, sends one message that does not announce others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from operator import attrgetter
from typing import Final

from pelton.api import (
    Backend,
    DirectGet,
    DirectReply,
    MessageNotFoundError,
    MsgGet,
    StoredMessage,
    StreamInfoRequest,
    api_error,
    parse_rfc3339,
)
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
from pelton.api.requests import FindMessages, FindMessagesReply, SubjectTotals, SubjectTotalsReply
from pelton.cluster.connection import Answer, Connection
from pelton.cluster.status import NO_RESPONDERS
from pelton.runtime import Clock, Deadline


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


# --- what an embedded store finds by a look through a stream; here message by message, as servers search nothing

_FIRST: Final = 4
_MOST: Final = 256
_AT_ONCE: Final = 64
_MOST_SUBJECTS: Final = 20_000
"""So many subjects servers are asked for, which name them all."""


async def find_messages(backend: Backend, clock: Clock, request: FindMessages) -> FindMessagesReply:
    """Return messages that match: where direct gets are not allowed, as the leader of the stream has them."""
    deadline, stream = Deadline(clock, request.within), request.stream
    asked = (StreamInfoRequest(name=stream, subjects_filter=each) for each in request.filters or ("",))
    infos = await asyncio.gather(*map(backend.call, asked))
    counts = [sum(info.state.subjects.values()) if request.filters else info.state.messages for info in infos]
    page = _batch if infos[0].config.allow_direct else _side_by_side

    async def part(subject: str, most: int) -> FindMessagesReply:
        found, looked_at, seq, number = list[StoredMessage](), 0, max(request.begin, 1), _FIRST
        while looked_at < most and (stored := await page(backend, stream, subject, seq, min(number, most - looked_at))):
            for each in stored:
                looked_at += 1
                found += [each] if request.is_in(each.data) else []
                if len(found) >= request.limit or deadline.is_over:
                    return FindMessagesReply(messages=tuple(found), looked_at=looked_at, next_begin=each.seq + 1)
            seq, number = stored[-1].seq + 1, min(2 * number, _MOST)
        return FindMessagesReply(messages=tuple(found), looked_at=looked_at)

    parts = await asyncio.gather(*map(part, request.filters or (">",), counts))
    # Beyond where one of them ended, others may be missing.
    upto = min(part.next_begin or inf for part in parts)
    whole = sorted((each for part in parts for each in part.messages if each.seq < upto), key=attrgetter("seq"))
    found = whole[: request.limit]
    begin = found[-1].seq + 1 if len(found) < len(whole) else upto
    return FindMessagesReply(
        messages=tuple(found),
        looked_at=sum(part.looked_at for part in parts),
        next_begin=0 if begin == inf else int(begin),
        total=sum(counts),
    )


async def _batch(backend: Backend, stream: str, subject: str, seq: int, number: int) -> list[StoredMessage]:
    try:
        return (await backend.direct_get(stream, DirectGet(seq=seq, next_by_subj=subject, batch=number))).messages
    except MessageNotFoundError:
        return []


async def _side_by_side(backend: Backend, stream: str, subject: str, seq: int, number: int) -> list[StoredMessage]:
    """Ask at several sequences at once, for where messages are dense, these are as many messages."""
    asked = range(seq, seq + min(number, _AT_ONCE))
    answers = await asyncio.gather(*(_next(backend, stream, subject, each) for each in asked))
    found = {stored.seq: stored for stored in answers if stored is not None}
    return [found[each] for each in sorted(found)]


async def _next(backend: Backend, stream: str, subject: str, seq: int) -> StoredMessage | None:
    try:
        found = (await backend.call(MsgGet(stream=stream, seq=seq, next_by_subj=subject))).message
    except MessageNotFoundError:
        return None
    return StoredMessage(found.subject, found.seq, parse_rfc3339(found.time), found.hdrs, found.data)


async def subject_totals(backend: Backend, request: SubjectTotals) -> SubjectTotalsReply:
    """Return how many messages the subjects have, summed up by a part of each."""
    if (await backend.call(StreamInfoRequest(name=request.stream))).state.num_subjects > _MOST_SUBJECTS:
        return SubjectTotalsReply()
    totals = Counter[str]()
    for each in request.filters:
        info = await backend.call(StreamInfoRequest(name=request.stream, subjects_filter=each))
        for subject, number in info.state.subjects.items():
            totals[subject[len(each) - 1 :].partition(f".{request.until}.")[0]] += number
    most = sorted(totals.items(), key=lambda entry: (-entry[1], entry[0]))
    return SubjectTotalsReply(totals=dict(most[: request.limit]))
