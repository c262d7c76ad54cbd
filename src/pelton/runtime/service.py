"""One lifecycle for everything that starts and stops.

    new -> running -> stopped
      `----------------^

`start` and `stop` may be called any number of times, also at once from several tasks: the work is done once
and all callers return when it is done. A service that stopped stays stopped; to run again, build another.
"""

import asyncio
import enum
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ServiceState(enum.Enum):
    """Where a service is in its life."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Service(ABC):
    """A base for objects that hold tasks, files or connections between `start` and `stop`."""

    def __init__(self) -> None:
        """A service in state `new`; nothing is acquired before `start`."""
        self._state = ServiceState.NEW
        self._transition = asyncio.Lock()

    @property
    def state(self) -> ServiceState:
        """The state after the last finished transition."""
        return self._state

    async def start(self) -> None:
        """Acquire what the service needs; no effect when it is running.

        Raises RuntimeError after `stop`. When acquiring fails the error passes through and the service is
        stopped.
        """
        async with self._transition:
            if self._state is ServiceState.RUNNING:
                return
            if self._state is ServiceState.STOPPED:
                raise RuntimeError(f"{type(self).__name__} was stopped; build a new one to start again")
            await self._acquire()

    async def stop(self) -> None:
        """Release everything, and return when that is done; no effect when the service is not running."""
        async with self._transition:
            was, self._state = self._state, ServiceState.STOPPED
            if was is ServiceState.RUNNING:
                await self._on_stop()

    async def _acquire(self) -> None:
        try:
            await self._on_start()
        except BaseException:
            # A start that failed half way still owns its first half.
            self._state = ServiceState.STOPPED
            await self._on_stop()
            raise
        self._state = ServiceState.RUNNING

    @abstractmethod
    async def _on_start(self) -> None:
        """Acquire; called at most once."""

    @abstractmethod
    async def _on_stop(self) -> None:
        """Release; called at most once, and also after a start that failed half way."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
