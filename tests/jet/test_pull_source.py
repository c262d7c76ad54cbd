"""When the next pull starts, for how much, and how it ends: step by step, without a store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pelton.api import Delivered, PullRefusedError
from pelton.jet.message import Message
from pelton.jet.message_source import PrefetchLimit, PullSource


def message(seq: int, size: int = 0) -> Message:
    backend: Any = None
    return Message(backend, Delivered("s", seq, 0, None, b"x" * size, seq, 1, 0, "S", "c"))


class Server:
    """Pulls, each answered when the test does so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answers: list[asyncio.Future[list[Message]]] = []
        self.cancelled = 0

    async def fetch(self, batch: int, max_bytes: int) -> list[Message]:
        self.asked.append((batch, max_bytes))
        answer: asyncio.Future[list[Message]] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def answer(self, *found: Message) -> None:
        await self.idle()
        self.answers.pop(0).set_result(list(found))
        await self.idle()

    async def idle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def pulling(server: Server, prefetch: int = 4, max_bytes: int = 0, *, overlaps: bool = True) -> PullSource:
    return PullSource(server.fetch, PrefetchLimit(prefetch, max_bytes), ("S", "c"), overlaps=overlaps)


async def filled(server: Server, source: PullSource, *found: Message) -> None:
    waiting = asyncio.ensure_future(source.wait())
    await server.answer(*found)
    await waiting


async def test_the_next_pull_begins_when_half_is_used_up() -> None:
    server = Server()
    source = pulling(server)
    await filled(server, source, *(message(n) for n in range(4)))
    source.pop()
    await server.idle()
    assert server.asked == [(4, 0)]
    source.pop()
    await server.idle()
    assert server.asked == [(4, 0), (2, 0)]
    source.pop()
    await server.idle()
    assert len(server.asked) == 2
    await server.answer(message(9))
    assert len(await source.close()) == 2


async def test_without_round_trips_it_begins_when_nothing_is_left() -> None:
    server = Server()
    source = pulling(server, overlaps=False)
    await filled(server, source, message(1), message(2))
    assert source.pop() is not None
    assert source.pop() is not None
    assert source.pop() is None
    await server.idle()
    assert server.asked == [(4, 0)]


async def test_bytes_have_their_threshold_too() -> None:
    server = Server()
    source = pulling(server, 10, 2000)
    await filled(server, source, *(message(n, 349) for n in range(3)))
    source.pop()
    await server.idle()
    assert len(server.asked) == 1
    source.pop()
    await server.idle()
    assert server.asked[1] == (9, 1450)
    await source.close()


async def test_one_that_does_not_fit_waits_until_all_is_free() -> None:
    server = Server()
    source = pulling(server, 4, 2000)
    await filled(server, source, message(1), message(2))
    source.pop()
    await server.answer()
    assert len(server.asked) == 2
    source.pop()
    waiting = asyncio.ensure_future(source.wait())
    await server.idle()
    assert server.asked[2] == (4, 2000)
    await server.answer()
    with pytest.raises(PullRefusedError):
        await waiting


async def test_an_error_is_told_after_what_came_before_it() -> None:
    server = Server()
    source = pulling(server)
    await filled(server, source, message(1), message(2))
    source.pop()
    await server.idle()
    server.answers.pop(0).set_exception(LookupError("gone"))
    await server.idle()
    assert source.pop() is not None
    with pytest.raises(LookupError):
        await source.wait()


async def test_closing_ends_the_pull_and_returns_what_is_left() -> None:
    server = Server()
    source = pulling(server)
    await filled(server, source, message(1), message(2), message(3))
    source.pop()
    await server.idle()
    assert [left.delivered.seq for left in await source.close()] == [2, 3]
    assert server.cancelled == 1


async def test_who_waits_is_cancelled_and_the_pull_only_by_closing() -> None:
    server = Server()
    source = pulling(server)
    waiting = asyncio.ensure_future(source.wait())
    await server.idle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert server.cancelled == 0
    await server.answer(message(1))
    assert [left.delivered.seq for left in await source.close()] == [1]
