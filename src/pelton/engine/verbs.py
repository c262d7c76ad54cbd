"""The administrative verbs: one handler a request type. A handler returns its reply or raises ApiError.

Handlers run inside a transaction; those in :data:`READS` change nothing and also run on a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

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
    StreamHeads,
    StreamInfoRequest,
    StreamList,
    StreamListReply,
    StreamNames,
    StreamNamesReply,
    StreamPurge,
    StreamUpdate,
)
from pelton.consumers import ConsumerLog
from pelton.engine import verbs_consumers as consumers
from pelton.engine import verbs_delivery as delivery
from pelton.engine import verbs_streams as streams
from pelton.engine.account import Account
from pelton.engine.catalogue import Catalogue

R = TypeVar("R")
_NAMES_PAGE: Final = 1024
_LIST_PAGE: Final = 256


class Scope(Protocol):
    """What a handler may use."""

    catalogue: Catalogue
    account: Account

    def now(self) -> int: ...
    def new_name(self) -> str: ...
    def waiting_pulls(self, consumer: ConsumerLog) -> int: ...


def _page(items: Sequence[R], offset: int, limit: int) -> tuple[Sequence[R], dict[str, Any]]:
    """Return one page of a list, and what a reply says about it."""
    start = min(max(offset, 0), len(items))
    return items[start : start + limit], {"total": len(items), "offset": start, "limit": limit}


def _matching(scope: Scope, subject: str) -> list[str]:
    return sorted(name for name, log in scope.catalogue.streams.items() if streams.takes(log.config, subject))


def stream_names(scope: Scope, request: StreamNames) -> StreamNamesReply:
    shown, page = _page(_matching(scope, request.subject), request.offset, _NAMES_PAGE)
    return StreamNamesReply(streams=tuple(shown), **page)


def stream_list(scope: Scope, request: StreamList) -> StreamListReply:
    shown, page = _page(_matching(scope, request.subject), request.offset, _LIST_PAGE)
    infos = tuple(streams.info_of(scope, streams.fresh(scope, name)) for name in shown)
    return StreamListReply(streams=infos, **page)


def consumer_names(scope: Scope, request: ConsumerNames) -> ConsumerNamesReply:
    shown, page = _page(consumers.names_of(scope, request.stream), request.offset, _NAMES_PAGE)
    return ConsumerNamesReply(consumers=tuple(shown), **page)


def consumer_list(scope: Scope, request: ConsumerList) -> ConsumerListReply:
    shown, page = _page(consumers.names_of(scope, request.stream), request.offset, _LIST_PAGE)
    infos = tuple(consumers.info_of(scope, request.stream, name) for name in shown)
    return ConsumerListReply(consumers=infos, **page)


def account_info(scope: Scope, request: AccountInfoRequest) -> AccountInfo:
    for name in list(scope.catalogue.streams):
        streams.fresh(scope, name)
    return scope.account.info()


Handler = Callable[[Scope, Any], Any]

HANDLERS: Final[dict[type[Request[Any]], Handler]] = {
    AccountInfoRequest: account_info,
    StreamCreate: streams.create,
    StreamUpdate: streams.update,
    StreamInfoRequest: streams.info,
    StreamNames: stream_names,
    StreamList: stream_list,
    StreamDelete: streams.delete,
    StreamHeads: streams.heads,
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
    {AccountInfoRequest, StreamInfoRequest, StreamNames, StreamList, StreamHeads, MsgGet, ConsumerUnsettled}
)
# Those that only ask, though some tidy up before they answer: what a user's transaction may do in its middle.
QUESTIONS: Final = READS | {ConsumerInfoRequest, ConsumerNames, ConsumerList}
