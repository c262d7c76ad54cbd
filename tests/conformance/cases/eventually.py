"""Waiting for what a server does after its reply, by asking repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pelton.jet import Consumer, Message, Stream

T = TypeVar("T")
_TRIES: Final = 500
_PAUSE_S: Final = 0.01


async def eventually(ask: Callable[[], Awaitable[T]], expected: T) -> None:
    """Ask until the reply is the expected one, for some seconds; AssertionError with the last one."""
    for _ in range(_TRIES):
        got = await ask()
        if got == expected:
            return
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"expected {expected!r}, still {got!r}")


async def left(stream: Stream, messages: int) -> None:
    """Assert how many messages remain after acks: the stream learns of them later than its consumer."""

    async def held() -> int:
        return (await stream.info()).state.messages

    await eventually(held, messages)


async def pending(consumer: Consumer, messages: int, *, without_ack: int | None = None) -> None:
    """Assert how many messages a consumer has pending, and for how many it awaits an ack."""

    async def counted() -> tuple[int, int | None]:
        info = await consumer.info()
        return info.num_pending, None if without_ack is None else info.num_ack_pending

    await eventually(counted, (messages, without_ack))


async def taken(consumer: Consumer, number: int) -> list[Message]:
    """Take that many messages from a consumer whose leader may not have stored the last of them yet."""
    found: list[Message] = []
    while len(found) < number:
        more = await consumer.fetch(number - len(found), timeout=5)
        assert more, f"{len(found)} messages came instead of {number}"
        found += more
    return found


async def all_of(consumer: Consumer, number: int) -> list[Message]:
    """Take that many messages, and any beyond them."""
    return await taken(consumer, number) + await consumer.fetch(10, no_wait=True)
