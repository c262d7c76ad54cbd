"""Administrative verbs on a cluster: what is asked again when nobody answers, and in which words.

Design: A server that dies takes with it what it was asked, and servers without a leader answer nothing. Who
waits for such an answer waits in vain, but asked again some seconds later the cluster does answer. So a verb is
asked again, within the patience of the settings, where twice is as good as once:

- A read changes nothing.
- A stream or consumer that is made, or changed, a second time in the same way is the same. Not where the user
  says that it must be new (``action="create"``): the second answer would be that it exists.
- A consumer, or a message, that is removed already is not there, which is what was wanted.

All others are asked once: purges, for example, would remove what has been stored since.

An ephemeral consumer without a name gets one here, and another one whenever nobody has answered, or it is offline.
It is placed on one server, for good, and for a moment after a death also on the dead one: it then exists, and
whatever is asked about it is not answered until that server is back. The one left behind is deleted.
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
_NO_MESSAGE: Final = "no message found"
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
    """Whether doing a verb a second time changes nothing."""
    if isinstance(request, ConsumerCreate):
        return request.action != "create"
    return type(request) in _AGAIN


class ApiCall(Generic[R]):
    """One verb, asked until there is an answer; ``new_id`` names consumers without a name."""

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
        """Return the answer; raises ServerTimeoutError where there is none, and what the answer says."""
        try:
            while True:
                try:
                    if (reply := await self._ask()) is not None:
                        return reply
                    name = self._connection.settings.name
                    reason: Exception = JetStreamMissingError(name, "nobody answers the JetStream API now")
                except NotSent as error:
                    reason = error
                except Interrupted as error:
                    self._lost()
                    reason = error
                except PeltonError as error:
                    if not is_passing(error):
                        raise
                    self._is_told(error)
                    reason = error
                await self._retry.after(reason)
        finally:
            await self._clear()

    async def _ask(self) -> R | None:
        """Ask once; None where nobody listens."""
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
            # Its user gave it none, and a server keeps a name of its own choice out of the configuration.
            return cast(R, replace(reply, config=replace(reply.config, name="")))
        return reply

    def _lost(self) -> None:
        """Take note that nobody answers; raises ServerTimeoutError where one may not ask again."""
        if not self._again:
            why = "the connection was lost while the answer was awaited"
            raise ServerTimeoutError(self._connection.settings.name, why) from None
        self._was_lost = True
        self._rename()

    def _is_told(self, error: PeltonError) -> None:
        if isinstance(error, ApiError) and error.err_code == _CONSUMER_OFFLINE:
            self._rename()

    def _rename(self) -> None:
        if self._is_nameless:
            assert isinstance(self._request, ConsumerCreate)
            self._left.append(self._request.config.name)
            self._request = cast(Request[R], _under(self._request, self._new_id()))

    async def _clear(self) -> None:
        """Remove what was made under names that were given up: nobody waits for it, idleness removes it else."""
        for name in self._left:
            assert isinstance(self._request, ConsumerCreate)
            subject = api_subject(ConsumerDelete(stream=self._request.stream_name, name=name), self._prefix)
            with suppress(Interrupted, PeltonError):
                await self._connection.tell(subject, b"", self._connection.new_inbox())


def _is_gone(request: Request[Any], error: ApiError) -> bool:
    """Whether what should be removed is not there."""
    if isinstance(request, MsgDelete):
        # The same code is that of a stream that denies it.
        return error.constant == "JSStreamMsgDeleteFailedF" and error.description == _NO_MESSAGE
    return isinstance(request, ConsumerDelete) and isinstance(error, ConsumerNotFoundError)


def _under(request: ConsumerCreate, name: str) -> ConsumerCreate:
    return replace(request, config=replace(request.config, name=name))
