"""The administrative verbs: one handler a request type. A handler returns its reply or raises ApiError.

Handlers run inside a transaction; those in :data:`READS` change nothing and also run on a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

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
    Request,
    StreamCreate,
    StreamDelete,
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

R = TypeVar("R")
_NAMES_PAGE: Final = 1024
_LIST_PAGE: Final = 256


def _page(items: Sequence[R], offset: int, limit: int) -> tuple[Sequence[R], dict[str, Any]]:
    """Return one page of a list, and what a reply says about it."""
    start = min(max(offset, 0), len(items))
    return items[start : start + limit], {"total": len(items), "offset": start, "limit": limit}


def _matching(session: Session, subject: str) -> list[str]:
    return sorted(name for name, log in session.registry.streams.items() if streams.takes(log.config, subject))


def stream_names(session: Session, request: StreamNames) -> StreamNamesReply:
    shown, page = _page(_matching(session, request.subject), request.offset, _NAMES_PAGE)
    return StreamNamesReply(streams=tuple(shown), **page)


def stream_list(session: Session, request: StreamList) -> StreamListReply:
    shown, page = _page(_matching(session, request.subject), request.offset, _LIST_PAGE)
    infos = tuple(streams.info_of(session, streams.fresh(session, name)) for name in shown)
    return StreamListReply(streams=infos, **page)


def consumer_names(session: Session, request: ConsumerNames) -> ConsumerNamesReply:
    shown, page = _page(consumers.names_of(session, request.stream), request.offset, _NAMES_PAGE)
    return ConsumerNamesReply(consumers=tuple(shown), **page)


def consumer_list(session: Session, request: ConsumerList) -> ConsumerListReply:
    shown, page = _page(consumers.names_of(session, request.stream), request.offset, _LIST_PAGE)
    infos = tuple(consumers.info_of(session, request.stream, name) for name in shown)
    return ConsumerListReply(consumers=infos, **page)


def account_info(session: Session, request: AccountInfoRequest) -> AccountInfo:
    for name in list(session.registry.streams):
        streams.fresh(session, name)
    return session.registry.account.info()


Handler = Callable[[Session, Any], Any]

HANDLERS: Final[dict[type[Request[Any]], Handler]] = {
    AccountInfoRequest: account_info,
    StreamCreate: streams.create,
    StreamUpdate: streams.update,
    StreamInfoRequest: streams.info,
    StreamNames: stream_names,
    StreamList: stream_list,
    StreamDelete: streams.delete,
    StreamLastHeaders: streams.heads,
    StreamPurge: streams.purge,
    MsgGet: streams.get_message,
    MsgDelete: streams.delete_message,
    ConsumerCreate: consumers.create,
    ConsumerInfoRequest: consumers.info,
    ConsumerNames: consumer_names,
    ConsumerList: consumer_list,
    ConsumerDelete: consumers.delete,
    ConsumerUnsettled: consumers.unsettled,
    ConsumerPause: delivery.pause,
    ConsumerReset: delivery.reset,
    ConsumerUnpin: delivery.unpin_group,
}

READS: Final = frozenset(
    {AccountInfoRequest, StreamInfoRequest, StreamNames, StreamList, StreamLastHeaders, MsgGet, ConsumerUnsettled}
)
# Those that only ask, though some tidy up before they answer: what a user's transaction may do in its middle.
QUESTIONS: Final = READS | {ConsumerInfoRequest, ConsumerNames, ConsumerList}
