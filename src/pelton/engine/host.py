"""The interface of the engine for its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from pelton.api import Delivered
from pelton.engine.door import Door
from pelton.engine.session import Committed, Session

R = TypeVar("R")


class Host(Protocol):
    """``session`` is that of shared transactions, and ``door`` has the checks before each operation.

    ``stage`` runs a call in the next transaction, ``read`` in a snapshot. ``second_session`` opens another session, on
    a connection of its own, for transactions that users hold open.
    """

    session: Session
    door: Door

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]: ...
    def read(self, call: Callable[[], R]) -> R: ...
    async def readable(self) -> None: ...
    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None: ...
    def woken(self) -> None: ...
    def second_session(self) -> Session: ...
    def publish_committed(self, committed: Committed) -> None: ...
