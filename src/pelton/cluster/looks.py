"""What an embedded store finds by a look through a stream; here message by message, as servers search nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Final

from pelton.api import (
    Backend,
    FindMessages,
    FindMessagesReply,
    MessageNotFoundError,
    MsgGet,
    StoredMessage,
    StreamInfoRequest,
    SubjectTotals,
    SubjectTotalsReply,
    parse_rfc3339,
)
from pelton.runtime import Clock, Deadline

_FIRST: Final = 4
_AT_ONCE: Final = 64
_MOST_SUBJECTS: Final = 20_000
"""So many subjects servers are asked for, which name them all."""


async def find_messages(backend: Backend, clock: Clock, request: FindMessages) -> FindMessagesReply:
    """Return messages that match, as the leader of the stream has them."""
    deadline = Deadline(clock, request.within)
    counts = {each: sum((await _counts(backend, request.stream, each)).values()) for each in request.filters}
    if not counts:
        counts[">"] = (await backend.call(StreamInfoRequest(name=request.stream))).state.messages
    parts = await asyncio.gather(*(_part(backend, deadline, each, request) for each in counts if counts[each]))
    # Beyond where one of them ended, others may be missing.
    upto = min((part.next_begin or inf for part in parts), default=inf)
    whole = sorted((each for part in parts for each in part.messages if each.seq < upto), key=attrgetter("seq"))
    found = whole[: request.limit]
    begin = found[-1].seq + 1 if len(found) < len(whole) else upto
    return FindMessagesReply(
        messages=tuple(found),
        looked_at=sum(part.looked_at for part in parts),
        next_begin=0 if begin == inf else int(begin),
        total=sum(counts.values()),
    )


async def _part(backend: Backend, deadline: Deadline, subject: str, request: FindMessages) -> FindMessagesReply:
    """Return what matches one filter."""
    found, looked_at, seq, number = list[StoredMessage](), 0, max(request.begin, 1), _FIRST
    while page := await _page(backend, request.stream, subject, range(seq, seq + number)):
        for stored in page:
            looked_at += 1
            found += [stored] if request.is_in(stored.data) else []
            if len(found) >= request.limit or deadline.is_over:
                return FindMessagesReply(messages=tuple(found), looked_at=looked_at, next_begin=stored.seq + 1)
        seq, number = page[-1].seq + 1, min(2 * number, _AT_ONCE)
    return FindMessagesReply(messages=tuple(found), looked_at=looked_at)


async def _page(backend: Backend, stream: str, subject: str, asked: Sequence[int]) -> list[StoredMessage]:
    """Ask at several sequences at once, for where messages are dense, these are as many messages."""
    answers = await asyncio.gather(*(_next(backend, stream, subject, seq) for seq in asked))
    found = {stored.seq: stored for stored in answers if stored is not None}
    return [found[seq] for seq in sorted(found)]


async def _next(backend: Backend, stream: str, subject: str, seq: int) -> StoredMessage | None:
    try:
        found = (await backend.call(MsgGet(stream=stream, seq=seq, next_by_subj=subject))).message
    except MessageNotFoundError:
        return None
    return StoredMessage(found.subject, found.seq, parse_rfc3339(found.time), found.hdrs, found.data)


async def _counts(backend: Backend, stream: str, subject: str) -> dict[str, int]:
    return (await backend.call(StreamInfoRequest(name=stream, subjects_filter=subject))).state.subjects


async def subject_totals(backend: Backend, request: SubjectTotals) -> SubjectTotalsReply:
    """Return how many messages the subjects have, summed up by a part of each."""
    if (await backend.call(StreamInfoRequest(name=request.stream))).state.num_subjects > _MOST_SUBJECTS:
        return SubjectTotalsReply()
    totals = Counter[str]()
    for each in request.filters:
        for subject, number in (await _counts(backend, request.stream, each)).items():
            totals[subject[len(each) - 1 :].partition(f".{request.until}.")[0]] += number
    most = sorted(totals.items(), key=lambda entry: (-entry[1], entry[0]))
    return SubjectTotalsReply(totals=dict(most[: request.limit]))
