"""Administrative verbs on a cluster: what is retried when no reply comes, and how.

Design: Requests to a server that dies are lost with it, and servers without a leader do not reply. Waiting for such a
reply is in vain, but the cluster answers a retry some seconds later. So a verb is retried, within the patience of the
settings, if running it twice is harmless:

- A read changes nothing.
- Making, or changing, a stream or consumer a second time in the same way has no further effect. The exception is one
  that the user requires to be new (``action="create"``): the second reply would be that it exists.
- A consumer, or a message, that is already removed is not there, as requested.

All others are sent once: a second purge, for example, would remove what has been stored since.

An ephemeral consumer without a name gets one here, and a new one whenever no reply came, or it is offline. A consumer
is placed on one server, for good, and for a moment after a server's death possibly on the dead one: it then exists, and
no request about it is answered until that server is back. The one left behind is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, cast

from msgspec.structs import replace

from pelton.api import (
    AccountInfoRequest,
    ApiError,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerList,
    ConsumerNames,
    ConsumerNotFoundError,
    JetStreamMissingError,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    PeltonError,
    Request,
    ServerTimeoutError,
    StreamCreate,
    StreamInfoRequest,
    StreamList,
    StreamNames,
    StreamUpdate,
    Success,
    api_subject,
    decode_reply,
    encode_body,
)
from pelton.api.errors import is_passing
from pelton.cluster.connection import Connection, Interrupted, NotSent
from pelton.cluster.retry import Retry

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
                    self._lost()
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

    def _lost(self) -> None:
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
