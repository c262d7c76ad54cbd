"""The administrative verbs: one handler per request type. A handler returns its reply or raises ApiError.

Handlers run inside a transaction; those in :data:`READS` change nothing and also run on a snapshot. The type
checker verifies that each handler matches its request and reply types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
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
    MsgDelete,
    MsgGet,
    MsgWithdraw,
    Request,
    StreamCreate,
    StreamDelete,
    StreamFill,
    StreamInfoRequest,
    StreamLastHeaders,
    StreamList,
    StreamListReply,
    StreamNames,
    StreamNamesReply,
    StreamPurge,
    StreamUpdate,
)
from pelton.engine.session import Session
from pelton.engine.verbs import consumers as consumers
from pelton.engine.verbs import delivery as delivery
from pelton.engine.verbs import streams as streams
from pelton.engine.verbs.fill import fill
from pelton.engine.verbs.withdraw import withdraw

R = TypeVar("R")
T = TypeVar("T")
_NAMES_PAGE: Final = 1024
_LIST_PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class _Page(Generic[T]):
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
    return sorted(name for name, log in session.registry.streams.items() if streams.takes(log.config, subject))


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
        StreamUpdate.answered_by(streams.update),
        StreamInfoRequest.answered_by(streams.info),
        StreamNames.answered_by(stream_names),
        StreamList.answered_by(stream_list),
        StreamDelete.answered_by(streams.delete),
        StreamLastHeaders.answered_by(streams.heads),
        StreamPurge.answered_by(streams.purge),
        MsgGet.answered_by(streams.get_message),
        MsgDelete.answered_by(streams.delete_message),
        MsgWithdraw.answered_by(withdraw),
        StreamFill.answered_by(fill),
        ConsumerCreate.answered_by(consumers.create),
        ConsumerInfoRequest.answered_by(consumers.info),
        ConsumerNames.answered_by(consumer_names),
        ConsumerList.answered_by(consumer_list),
        ConsumerDelete.answered_by(consumers.delete),
        ConsumerUnsettled.answered_by(consumers.unsettled),
        ConsumerPause.answered_by(delivery.pause),
        ConsumerReset.answered_by(delivery.reset),
        ConsumerUnpin.answered_by(delivery.unpin_group),
    )
)

READS: Final[frozenset[type[Request[Any]]]] = frozenset(
    {AccountInfoRequest, StreamInfoRequest, StreamNames, StreamList, StreamLastHeaders, MsgGet, ConsumerUnsettled}
)
# Requests that only query, although some remove what has expired first: allowed inside a user's transaction.
QUESTIONS: Final[frozenset[type[Request[Any]]]] = READS | {ConsumerInfoRequest, ConsumerNames, ConsumerList}


def answer(session: Session, request: Request[R]) -> R:
    """Handle a request inside a transaction or, if it only reads, on a snapshot. Raises ApiError."""
    reply: R = _HANDLERS[type(request)](session, request)
    return reply
