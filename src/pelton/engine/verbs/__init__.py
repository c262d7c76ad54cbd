"""The administrative verbs: one handler per request type. A handler returns its reply or raises ApiError.

Handlers run inside a transaction; those in :data:`READS` change nothing and also run on a snapshot. The type
checker verifies that each handler matches its request and reply types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    ApiError,
    ConsumerBacklogs,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfoRequest,
    ConsumerList,
    ConsumerListReply,
    ConsumerNames,
    ConsumerNamesReply,
    ConsumerPause,
    ConsumerReset,
    ConsumerUnpin,
    ConsumerUnsettled,
    MinuteNote,
    MinuteNotes,
    MinuteNotesReply,
    MsgDelete,
    MsgGet,
    Request,
    StreamCreate,
    StreamDelete,
    StreamFill,
    StreamFillReply,
    StreamInfoRequest,
    StreamLastHeaders,
    StreamLastMessages,
    StreamList,
    StreamListReply,
    StreamNames,
    StreamNamesReply,
    Success,
    UnsettledGroups,
)
from pelton.api.tracing import Replacement, Withdrawn
from pelton.consumers import ConsumerLog
from pelton.engine.host import UndoneError
from pelton.engine.session import Session
from pelton.engine.submissions import all_stored, store
from pelton.engine.verbs import consumers, streams
from pelton.storage import integer, text
from pelton.streams import StreamLog


def fill(session: Session, request: StreamFill) -> StreamFillReply:
    """Store messages under their own sequences; then let schedules run."""
    log, now = session.registry.stream(request.stream), session.now()
    for message in request.messages:
        if message.seq > log.state.last:
            log.copier.append_moved(message, now)
    if request.last_seq:
        log.copier.skip_to(request.last_seq + 1)
    for seq in request.schedules:
        log.copier.begin_schedule(seq, now)
    return StreamFillReply(last_seq=log.state.last)


# --- what is noted of each minute: beside all streams, so that nobody sees it in lists, limits and counts


def note_minute(session: Session, request: MinuteNote) -> Success:
    place = _place_of(request.minute)
    session.db.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (place, request.data))
    return Success()


def minute_notes(session: Session, request: MinuteNotes) -> MinuteNotesReply:
    minutes = range(max(request.first, request.last - MinuteNote.MINUTES + 1), request.last + 1)
    places = msgspec.json.encode([_place_of(minute) for minute in minutes]).decode()
    found = session.db.execute("SELECT value FROM meta WHERE key IN (SELECT value FROM json_each(?))", (places,))
    return MinuteNotesReply(notes=tuple(note for (note,) in found if isinstance(note, bytes)))


def _place_of(minute: int) -> str:
    return f"minute {minute % MinuteNote.MINUTES}"


# --- removing messages before anybody works on them


def withdraw(session: Session, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
    """Remove messages for which no consumer waits, and store others, in one transaction.

    One that was given back, or whose ack wait is over, is not waited for.
    """
    log, now, wanted = streams.fresh(session, stream), session.now(), instead.keys()
    held: set[int] = set()
    given_back: list[tuple[ConsumerLog, int, str | None]] = []
    for consumer, seq, subject, is_held in _deliveries(session, log, wanted, now):
        if is_held:
            held.add(seq)
        else:
            given_back.append((consumer, seq, subject))
    free = sorted(row.seq for row in log.reader.get_many([seq for seq in wanted if seq not in held]))
    try:
        messages = [message for seq in free for message in instead[seq].messages]
        acks = all_stored(store(session, messages, "until refused"))
    except ApiError as refused:
        raise UndoneError(refused) from refused
    log.remover.remove(free)
    removed = set(free)
    for consumer, seq, subject in given_back:
        if seq in removed:
            # Nobody redelivers it, and a late ack of an earlier delivery is refused.
            consumer.forget_missing(seq, subject)
    return Withdrawn(tuple(free), tuple(acks), tuple(sorted(held)))


def _deliveries(
    session: Session, log: StreamLog, wanted: Collection[int], now: int
) -> Iterator[tuple[ConsumerLog, int, str | None, bool]]:
    """Iterate over the deliveries of these messages that are not settled, each with whether its ack is waited for."""
    sequences = f"[{','.join(map(str, wanted))}]"
    sql = "SELECT seq, due, waits, subject FROM pending WHERE consumer=? AND seq IN (SELECT value FROM json_each(?))"
    for listed in session.registry.consumers_of(log):
        consumer = session.registry.use_consumer(listed)
        for seq, due, waits, subject in consumer.db.execute(sql, (consumer.id, sequences)).fetchall():
            yield consumer, integer(seq), None if subject is None else text(subject), not waits and integer(due) > now


R = TypeVar("R")
T = TypeVar("T")
_NAMES_PAGE: Final = 1024
_LIST_PAGE: Final = 256


class _Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list in a reply: its items, their total number, its offset and its limit."""

    items: tuple[T, ...]
    total: int
    offset: int
    limit: int

    @classmethod
    def of(cls, items: Sequence[T], offset: int, limit: int) -> _Page[T]:
        start = min(max(offset, 0), len(items))
        return cls(tuple(items[start : start + limit]), len(items), start, limit)


def _matching(session: Session, subject: str) -> list[str]:
    return sorted(session.registry.routes.overlapping(subject) if subject else session.registry.streams.rows)


def stream_names(session: Session, request: StreamNames) -> StreamNamesReply:
    page = _Page.of(_matching(session, request.subject), request.offset, _NAMES_PAGE)
    return StreamNamesReply(streams=page.items, total=page.total, offset=page.offset, limit=page.limit)


def stream_list(session: Session, request: StreamList) -> StreamListReply:
    page = _Page.of(_matching(session, request.subject), request.offset, _LIST_PAGE)
    infos = tuple(streams.info_of(session, streams.fresh(session, name)) for name in page.items)
    return StreamListReply(streams=infos, total=page.total, offset=page.offset, limit=page.limit)


def consumer_names(session: Session, request: ConsumerNames) -> ConsumerNamesReply:
    page = _Page.of(consumers.names_of(session, request.stream), request.offset, _NAMES_PAGE)
    return ConsumerNamesReply(consumers=page.items, total=page.total, offset=page.offset, limit=page.limit)


def consumer_list(session: Session, request: ConsumerList) -> ConsumerListReply:
    page = _Page.of(consumers.names_of(session, request.stream), request.offset, _LIST_PAGE)
    infos = tuple(consumers.info_of(session, request.stream, name) for name in page.items)
    return ConsumerListReply(consumers=infos, total=page.total, offset=page.offset, limit=page.limit)


def account_info(session: Session, request: AccountInfoRequest) -> AccountInfo:
    for name in list(session.registry.streams):
        streams.fresh(session, name)
    return session.registry.account.info()


_HANDLERS: Final[dict[type[Request[Any]], Callable[[Session, Any], Any]]] = dict(
    (
        AccountInfoRequest.answered_by(account_info),
        StreamCreate.answered_by(streams.create),
        StreamInfoRequest.answered_by(streams.info),
        StreamNames.answered_by(stream_names),
        StreamList.answered_by(stream_list),
        StreamDelete.answered_by(streams.delete),
        StreamLastHeaders.answered_by(streams.heads),
        StreamLastMessages.answered_by(streams.last_messages),
        MsgGet.answered_by(streams.get_message),
        MsgDelete.answered_by(streams.delete_message),
        StreamFill.answered_by(fill),
        ConsumerCreate.answered_by(consumers.create),
        ConsumerInfoRequest.answered_by(consumers.info),
        ConsumerNames.answered_by(consumer_names),
        ConsumerList.answered_by(consumer_list),
        ConsumerDelete.answered_by(consumers.delete),
        ConsumerBacklogs.answered_by(consumers.backlogs),
        MinuteNote.answered_by(note_minute),
        MinuteNotes.answered_by(minute_notes),
        ConsumerUnsettled.answered_by(consumers.list_unsettled),
        UnsettledGroups.answered_by(consumers.group_unsettled),
        ConsumerPause.answered_by(consumers.pause),
        ConsumerReset.answered_by(consumers.reset),
        ConsumerUnpin.answered_by(consumers.unpin_group),
    )
)

READS: Final[frozenset[type[Request[Any]]]] = frozenset(
    {
        AccountInfoRequest,
        StreamInfoRequest,
        StreamNames,
        StreamList,
        StreamLastHeaders,
        StreamLastMessages,
        MsgGet,
        ConsumerBacklogs,
        ConsumerNames,
        MinuteNotes,
        ConsumerUnsettled,
        UnsettledGroups,
    }
)
# Requests that only query, although some remove what has expired first: allowed inside a user's transaction.
QUESTIONS: Final[frozenset[type[Request[Any]]]] = READS | {ConsumerInfoRequest, ConsumerList}


def answer(session: Session, request: Request[R]) -> R:
    """Handle a request inside a transaction or, if it only reads, on a snapshot. Raises ApiError."""
    reply: R = _HANDLERS[type(request)](session, request)
    return reply
