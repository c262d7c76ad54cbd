"""Requests to a cluster: how long and how often one is retried, administrative verbs, and reads.

**Administrative verbs on a cluster: what is retried when no reply comes, and how.** Requests to a server that dies are
lost with it, and servers without a leader do not reply. Waiting for such a reply is in vain, but the cluster answers a
retry some seconds later. So a verb is retried, within the patience of the settings, if running it twice is harmless:

- A read changes nothing.
- Making, or changing, a stream or consumer a second time in the same way has no further effect. The exception is one
  that the user requires to be new (``action="create"``): the second reply would be that it exists.
- A consumer, or a message, that is already removed is not there, as requested.

All others are sent once: a second purge, for example, would remove what has been stored since.

An ephemeral consumer without a name gets one here, and a new one whenever no reply came, or it is offline. A consumer
is placed on one server, for good, and for a moment after a server's death possibly on the dead one: it then exists, and
no request about it is answered until that server is back. The one left behind is deleted.

**Reads of a cluster: direct gets (ADR-31), and looks through a stream, message by message.** **Direct get of a cluster
(ADR-31): the frames of ``api/direct.py``, collected.** A server older than 2.11, which knows no batches, sends one
message that does not announce others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, cast

from msgspec.structs import replace

from pelton.api import (
    AccountInfoRequest,
    ApiError,
    Backend,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerList,
    ConsumerNames,
    ConsumerNotFoundError,
    DirectGet,
    DirectReply,
    JetStreamMissingError,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    PeltonError,
    Request,
    ServerTimeoutError,
    StoredMessage,
    StreamCreate,
    StreamInfoRequest,
    StreamList,
    StreamNames,
    StreamUpdate,
    Success,
    api_error,
    api_subject,
    decode_reply,
    encode_body,
    parse_rfc3339,
)
from pelton.api.direct import (
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
from pelton.api.errors import NO_PEERS, from_reply, is_passing
from pelton.api.requests import FindMessages, FindMessagesReply, SubjectTotals, SubjectTotalsReply
from pelton.cluster.client import NO_RESPONDERS
from pelton.cluster.connection import Answer, Connection, Interrupted, NotSent
from pelton.runtime import Clock, Deadline

_FIRST_S: Final = 0.05
_LONGEST_S: Final = 1.0
_PEERS_S: Final = 5.0


class Retry:
    """The patience of one operation, which starts to count when it is first needed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._end: float | None = None
        self._pause = _FIRST_S

    async def after(self, error: Exception) -> None:
        """Return when to retry after ``error``; raises it, or what it means, when patience is exhausted."""
        left = await self.until_connected(error)
        await self._connection.clock.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, _LONGEST_S)

    async def until_connected(self, error: Exception) -> float:
        """Return when there is a connection, and how many seconds are left; raises as :meth:`after`."""
        clock = self._connection.clock
        if self._end is None:
            patience = self._connection.settings.patience
            # A reply that may be right is not retried for long.
            seldom = isinstance(error, ApiError) and error.err_code == NO_PEERS
            self._end = clock.monotonic() + (min(patience, _PEERS_S) if seldom else patience)
        await self._connection.until_connected(self._end)
        left = self._end - clock.monotonic()
        if left <= 0:
            raise error if isinstance(error, PeltonError) else self._connection.no_answer()
        return left


R = TypeVar("R")
_CONSUMER_OFFLINE: Final = 10119
_NO_MESSAGE: Final = frozenset({"no message found", "stream store EOF"})
_AGAIN: Final = frozenset(
    {
        AccountInfoRequest,
        StreamInfoRequest,
        StreamNames,
        StreamList,
        MsgGet,
        ConsumerInfoRequest,
        ConsumerNames,
        ConsumerList,
        StreamCreate,
        StreamUpdate,
        ConsumerDelete,
        MsgDelete,
    }
)


def may_be_repeated(request: Request[Any]) -> bool:
    """Whether running a verb a second time changes nothing."""
    if isinstance(request, ConsumerCreate):
        return request.action != "create"
    return type(request) in _AGAIN


class ApiCall(Generic[R]):
    """One verb, sent until there is a reply; ``new_id`` names consumers without a name."""

    def __init__(self, connection: Connection, prefix: str, request: Request[R], new_id: Callable[[], str]) -> None:
        self._connection = connection
        self._prefix = prefix
        self._new_id = new_id
        self._again = may_be_repeated(request)
        self._request = request
        self._is_nameless = False
        if isinstance(request, ConsumerCreate) and not (request.config.name or request.config.durable_name):
            self._is_nameless = True
            self._request = cast(Request[R], _under(request, new_id()))
        self._retry = Retry(connection)
        self._was_lost = False
        self._left: list[str] = []

    async def run(self) -> R:
        """Return the reply; raises ServerTimeoutError if there is none, and the error that the reply holds."""
        try:
            while True:
                try:
                    if (reply := await self._ask()) is not None:
                        return reply
                    name = self._connection.settings.name
                    reason: Exception = JetStreamMissingError(name, "the JetStream API does not answer now")
                except NotSent as error:
                    reason = error
                except Interrupted as error:
                    self._on_loss()
                    reason = error
                except PeltonError as error:
                    if not is_passing(error):
                        raise
                    self._note_offline(error)
                    reason = error
                await self._retry.after(reason)
        finally:
            await self._clear()

    async def _ask(self) -> R | None:
        """Send the request once; return None if it has no responders."""
        subject, body = api_subject(self._request, self._prefix), encode_body(self._request)
        answer = await self._connection.ask(subject, body, again=self._again)
        if answer.is_unheard:
            return None
        try:
            reply = decode_reply(self._request, answer.data)
        except ApiError as error:
            if self._was_lost and _is_gone(self._request, error):
                return cast(R, Success())
            raise
        if self._is_nameless and isinstance(reply, ConsumerInfo):
            # Its user gave it none, and a server does not include a name of its own choice in the configuration.
            return cast(R, replace(reply, config=replace(reply.config, name="")))
        return reply

    def _on_loss(self) -> None:
        """Note that no reply came; raises ServerTimeoutError if the request may not be repeated."""
        if not self._again:
            why = "the connection was lost while waiting for the reply"
            raise ServerTimeoutError(self._connection.settings.name, why) from None
        self._was_lost = True
        self._rename()

    def _note_offline(self, error: PeltonError) -> None:
        if isinstance(error, ApiError) and error.err_code == _CONSUMER_OFFLINE:
            self._rename()

    def _rename(self) -> None:
        if self._is_nameless:
            assert isinstance(self._request, ConsumerCreate)
            self._left.append(self._request.config.name)
            self._request = cast(Request[R], _under(self._request, self._new_id()))

    async def _clear(self) -> None:
        """Delete the consumers of abandoned names, without waiting; otherwise their inactivity removes them."""
        for name in self._left:
            assert isinstance(self._request, ConsumerCreate)
            subject = api_subject(ConsumerDelete(stream=self._request.stream_name, name=name), self._prefix)
            with suppress(Interrupted, PeltonError):
                await self._connection.tell(subject, b"", self._connection.new_inbox())


def _is_gone(request: Request[Any], error: ApiError) -> bool:
    """Whether the thing to remove is not there."""
    if isinstance(request, MsgDelete):
        # A stream that denies deletion uses the same code as one of the errors.
        is_failed = error.constant == "JSStreamMsgDeleteFailedF"
        return isinstance(error, MessageNotFoundError) or (is_failed and error.description in _NO_MESSAGE)
    return isinstance(request, ConsumerDelete) and isinstance(error, ConsumerNotFoundError)


def _under(request: ConsumerCreate, name: str) -> ConsumerCreate:
    return replace(request, config=replace(request.config, name=name))


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
"""Up to this many subjects, the servers are asked for all of them."""


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
                if 0 < request.upto < each.seq:
                    return FindMessagesReply(messages=tuple(found), looked_at=looked_at)
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
