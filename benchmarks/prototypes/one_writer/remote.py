"""The port of a process that does not write: it has no store open, and asks the one that writes for everything."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any, TypeVar

from benchmarks.prototypes.one_writer.frames import (
    Answered,
    CallAsked,
    FramePipe,
    GivenUp,
    PublishAsked,
    PullAsked,
    Pulled,
    Reply,
    SettleAsked,
    Stored,
    reply_decoder,
)
from pelton.api import (
    AckOp,
    Delivered,
    DirectGet,
    DirectReply,
    Outgoing,
    PeltonError,
    PubAck,
    PullRequest,
    Request,
    Settled,
)
from pelton.api.backend import Leftover
from pelton.api.tracing import Tracing
from pelton.engine import Engine

R = TypeVar("R")


class AskingBackend:
    """As much of a backend as workers and publishers need; ``path`` is the writer's socket."""

    planning = Engine.planning
    domain_prefix = ""
    refuses_late_acks = True
    has_exclusive_subjects = True
    tracing: Tracing | None = None

    def __init__(self, path: str) -> None:
        self._path = path
        self._pipe: FramePipe[Reply] | None = None
        self._connecting = asyncio.Lock()
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._messages: list[Outgoing] = []
        self._stored: list[asyncio.Future[PubAck]] = []

    async def _connected(self) -> FramePipe[Reply]:
        async with self._connecting:
            if self._pipe is None:
                loop = asyncio.get_running_loop()
                _, self._pipe = await loop.create_unix_connection(
                    lambda: FramePipe(reply_decoder, lambda _, reply: self._take(reply)), self._path
                )
        return self._pipe

    def _take(self, reply: Reply) -> None:
        future = self._waiting.pop(reply.id, None)
        if future is None or future.done():
            return
        if isinstance(reply, Answered):
            found = pickle.loads(reply.pickled)
            if reply.failed:
                future.set_exception(found)
            else:
                future.set_result(found)
        else:
            future.set_result(reply)

    async def _ask(self, made: Callable[[int], Any]) -> Any:
        pipe = self._pipe or await self._connected()
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        pipe.send(made(number))
        try:
            return await future
        except asyncio.CancelledError:
            # What was delivered in this moment stays out until its ack wait is over: a measurement has no such pulls.
            pipe.send(GivenUp(number))
            raise
        finally:
            self._waiting.pop(number, None)

    async def _asked(self, name: str, *arguments: object) -> Any:
        return await self._ask(lambda number: CallAsked(number, pickle.dumps((name, arguments))))

    # --- the port: what is frequent

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        reply = await self._ask(lambda number: PullAsked(number, stream, consumer, request))
        assert isinstance(reply, Pulled)
        return list(reply.found)

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        if not endings:
            return []
        reply = await self._ask(lambda number: SettleAsked(number, stream, consumer, endings))
        return reply if isinstance(reply, list) else [None] * len(endings)

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        pipe = self._pipe or await self._connected()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PubAck] = loop.create_future()
        if not self._messages:
            loop.call_soon(self._send_publishes, pipe)
        self._messages.append(Outgoing(subject, data, headers))
        self._stored.append(future)
        return await future

    def _send_publishes(self, pipe: FramePipe[Reply]) -> None:
        messages, self._messages = self._messages, []
        futures, self._stored = self._stored, []
        number = next(self._ids)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        reply.add_done_callback(lambda done: _answer_each(futures, done))
        pipe.send(PublishAsked(number, messages))

    # --- the port: what is rare

    async def call(self, request: Request[R]) -> R:
        found: R = await self._asked("call", request)
        return found

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        found: DirectReply = await self._asked("direct_get", stream, request)
        return found

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        found: list[PeltonError | None] = await self._asked("ack", stream, consumer, acks)
        return found

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        found: list[PubAck] = await self._asked("settle", publishes, stream, consumer, ack)
        return found

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        found: list[PubAck] = await self._asked("publish_batch", messages)
        return found

    async def presence(self) -> str:
        found: str = await self._asked("presence")
        return found

    async def is_gone(self, presence: str) -> bool:
        found: bool = await self._asked("is_gone", presence)
        return found

    async def begun_deliveries(self, stream: str) -> None:
        """Return None: the marks are the writer's."""

    def might_reach(self, subject: str) -> bool:
        return False

    def check_loop(self) -> None:
        """Every caller is on the right loop here."""

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Nothing tells it that the writer has died."""

    def clone(self) -> AskingBackend:
        return AskingBackend(self._path)

    async def close(self) -> None:
        if self._pipe is not None:
            await self._pipe.close()


def _answer_each(futures: Sequence[asyncio.Future[PubAck]], done: asyncio.Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        for future in futures:
            if not future.done():
                future.set_exception(error)
        return
    reply = done.result()
    if isinstance(reply, Stored):
        for future, ack in zip(futures, map(PubAck, repeat(reply.stream), reply.seqs), strict=True):
            if not future.done():
                future.set_result(ack)
        return
    for future, answer in zip(futures, reply, strict=True):
        if future.done():
            continue
        if isinstance(answer, PubAck):
            future.set_result(answer)
        else:
            future.set_exception(answer)
