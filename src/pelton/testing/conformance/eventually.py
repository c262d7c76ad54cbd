"""Waiting for what a server does after it has answered, by asking again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")
_TRIES: Final = 500
_PAUSE_S: Final = 0.01


async def eventually(ask: Callable[[], Awaitable[T]], expected: T) -> None:
    """Ask until the answer is the expected one, for some seconds; AssertionError with the last one."""
    for _ in range(_TRIES):
        got = await ask()
        if got == expected:
            return
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"expected {expected!r}, still {got!r}")
