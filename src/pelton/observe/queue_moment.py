"""What is known of queues' streams at one moment, as a backend: most questions about a queue are answered by it.

The infos of all streams of all queues are one question, those of a queue's consumers another. A stream without messages
has nothing else to tell, nor have its consumers; so an idle queue costs no question of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, TypeVar, cast

from pelton.api import (
    Backend,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerList,
    ConsumerNames,
    ConsumerUnsettled,
    DirectGet,
    DirectReply,
    MsgGet,
    Request,
    StreamInfo,
    StreamInfoRequest,
    StreamList,
    UnsettledGroups,
    UnsettledGroupsReply,
    api_error,
)
from pelton.api.codec import names_of
from pelton.api.requests import ConsumerNamesReply, ConsumerUnsettledReply
from pelton.jet import Streams
from pelton.jet.stream import list_all
from pelton.queue.model.naming import QueueNames

R = TypeVar("R")


async def queues_now(jet: Streams, queue: str = "") -> Streams:
    """Return the streams of a queue, or of all, as of now: to be asked at once. Raises ConfigError."""
    # Of a store with very many queues, nearly all streams are theirs: no page is to look for them.
    subjects = f"{QueueNames(queue).root}.>" if queue else ""
    infos = await list_all(jet.backend, StreamList(subject=subjects), attrgetter("streams"))
    return Streams(cast(Backend, _Moment(jet.backend, {info.config.name: info for info in infos})), jet.runtime)


class _Moment:
    """Answers from these infos, and asks ``backend`` for everything else."""

    def __init__(self, backend: Backend, infos: Mapping[str, StreamInfo]) -> None:
        self._backend = backend
        self._infos = infos
        self._consumers: dict[str, dict[str, ConsumerInfo]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def call(self, request: Request[R]) -> R:
        info = self._infos.get(names_of(request).get("stream", ""))
        if info is None and self._infos and isinstance(request, StreamInfoRequest):
            raise api_error("JSStreamNotFoundErr", stream=request.name)
        reply = None if info is None else await self._known(request, info)
        return await self._backend.call(request) if reply is None else cast("R", reply)

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        if (info := self._infos.get(stream)) is not None and not info.state.messages:
            raise api_error("JSNoMessageFoundErr", stream=stream, seq=request.seq)
        return await self._backend.direct_get(stream, request)

    async def _known(self, request: Request[Any], info: StreamInfo) -> Any:
        is_empty = not info.state.messages
        if isinstance(request, StreamInfoRequest):
            return info if is_empty or not request.subjects_filter else None
        if isinstance(request, MsgGet) and is_empty:
            raise api_error("JSNoMessageFoundErr", stream=info.config.name, seq=request.seq)
        if isinstance(request, ConsumerNames):
            names = tuple(await self._consumers_of(info))
            return ConsumerNamesReply(consumers=names, total=len(names), limit=len(names))
        if isinstance(request, ConsumerInfoRequest | ConsumerUnsettled | UnsettledGroups):
            found = (await self._consumers_of(info)).get(request.name)
            if found is None:
                raise api_error("JSConsumerNotFoundErr", stream=request.stream, consumer=request.name)
            if isinstance(request, ConsumerInfoRequest):
                return found
            if found.num_ack_pending:
                return None
            return UnsettledGroupsReply() if isinstance(request, UnsettledGroups) else ConsumerUnsettledReply()
        return None

    async def _consumers_of(self, info: StreamInfo) -> Mapping[str, ConsumerInfo]:
        name = info.config.name
        if name not in self._consumers:
            request = ConsumerList(stream=name)
            asked = await list_all(self._backend, request, attrgetter("consumers")) if info.state.messages else ()
            self._consumers[name] = {each.name: each for each in asked}
        return self._consumers[name]
