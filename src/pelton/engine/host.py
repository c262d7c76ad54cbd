"""The engine as its parts see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from pelton.api import Delivered
from pelton.engine.session import Session

R = TypeVar("R")


class Host(Protocol):
    """``session`` is that of shared transactions; ``stage`` runs a call in the next one, ``read`` on a snapshot."""

    session: Session

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]: ...
    def read(self, call: Callable[[], R]) -> R: ...
    async def readable(self) -> None: ...
    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None: ...
    def check_place(self) -> None: ...
    def check_outside(self) -> None: ...
    def check_loop(self) -> None: ...
    def woken(self) -> None: ...
