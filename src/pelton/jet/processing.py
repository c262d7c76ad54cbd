"""What a program does with a message, told to whoever traces the opening."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import isawaitable
from typing import Any

from pelton.api.tracing import Tracing
from pelton.jet.message import Message


def processing(message: Message) -> AbstractContextManager[None]:
    """Cover what a program does with a message that it has fetched."""
    tracing = message._backend.tracing  # one package
    return nullcontext() if tracing is None else tracing.processing(message.delivered, is_new=False)


def processed(tracing: Tracing, callback: Callable[[Message], object]) -> Callable[[Message], Awaitable[Any]]:
    """Return a callback whose every call is told."""

    async def call(message: Message) -> None:
        with tracing.processing(message.delivered, is_new=True):
            result = callback(message)
            if result is not None and isawaitable(result):
                await result

    return call
