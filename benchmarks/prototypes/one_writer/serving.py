"""The process that writes for all: it carries out what others ask, each request in a task, on its own open store."""

from __future__ import annotations

import asyncio
import pickle

from benchmarks.prototypes.one_writer.frames import (
    AllDone,
    Answered,
    Asked,
    CallAsked,
    FramePipe,
    GivenUp,
    PublishAsked,
    PullAsked,
    Pulled,
    SettleAsked,
    Stored,
    asked_decoder,
)
from pelton.api import Backend, PubAck


class WritesForAll:
    """Serves a store's backend on a Unix socket."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tasks: dict[tuple[FramePipe[Asked], int], asyncio.Task[None]] = {}
        self._pipes: list[FramePipe[Asked]] = []
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._pipe, path)

    def _pipe(self) -> FramePipe[Asked]:
        pipe = FramePipe(asked_decoder, self._take)
        self._pipes.append(pipe)
        return pipe

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(pipe.close() for pipe in self._pipes))

    def _take(self, pipe: FramePipe[Asked], asked: Asked) -> None:
        if isinstance(asked, GivenUp):
            task = self._tasks.get((pipe, asked.id))
            if task is not None:
                task.cancel()
            return
        place = (pipe, asked.id)
        self._tasks[place] = asyncio.create_task(self._answer(pipe, asked))
        self._tasks[place].add_done_callback(lambda _: self._tasks.pop(place))

    async def _answer(self, pipe: FramePipe[Asked], asked: PullAsked | SettleAsked | PublishAsked | CallAsked) -> None:
        try:
            if isinstance(asked, PullAsked):
                await self._pull(pipe, asked)
            elif isinstance(asked, SettleAsked):
                await self._settle(pipe, asked)
            elif isinstance(asked, PublishAsked):
                await self._publish(pipe, asked)
            else:
                await self._call(pipe, asked)
        except Exception as error:  # whatever it is, the caller gets it
            pipe.send(Answered(asked.id, pickle.dumps(error), True))

    async def _pull(self, pipe: FramePipe[Asked], asked: PullAsked) -> None:
        pipe.send(Pulled(asked.id, await self._backend.pull(asked.stream, asked.consumer, asked.request)))

    async def _settle(self, pipe: FramePipe[Asked], asked: SettleAsked) -> None:
        answers = await self._backend.settle_many(asked.endings, asked.stream, asked.consumer)
        if any(answers):
            pipe.send(Answered(asked.id, pickle.dumps(answers), False))
        else:
            pipe.send(AllDone(asked.id))

    async def _publish(self, pipe: FramePipe[Asked], asked: PublishAsked) -> None:
        answers = await self._backend.publish_apart(asked.messages)
        seqs = [answer.seq for answer in answers if isinstance(answer, PubAck) and not answer.duplicate]
        streams = {answer.stream for answer in answers if isinstance(answer, PubAck)}
        if len(seqs) == len(answers) and len(streams) == 1:
            pipe.send(Stored(asked.id, streams.pop(), seqs))
        else:
            pipe.send(Answered(asked.id, pickle.dumps(answers), False))

    async def _call(self, pipe: FramePipe[Asked], asked: CallAsked) -> None:
        name, arguments = pickle.loads(asked.pickled)
        found = await getattr(self._backend, name)(*arguments)
        pipe.send(Answered(asked.id, pickle.dumps(found), False))
