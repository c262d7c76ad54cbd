"""Archives on their way to and from clients (``nats stream backup``, ``restore``), and the subjects of their chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from pelton.api import api_error
from pelton.runtime import Runtime
from pelton.server.ports import Published

ACKS: Final = "$JS.SNAPSHOT.ACK."
CHUNKS: Final = "$JS.SNAPSHOT.RESTORE."
# Each holds a file or a connection.
_MOST: Final = 64


class Transfer(Protocol):
    """One archive on its way."""

    def take(self, message: Published) -> None:
        """Take a message about it: an ack of a chunk, or a chunk."""
        ...


class TransferTable:
    """The transfers of one account that are under way, by the beginning of their subjects."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._transfers: dict[str, Transfer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def new_subject(self, prefix: str, stream: str) -> str:
        """Return the subject of a new transfer."""
        return f"{prefix}{stream}.{self._runtime.ids.new()}"

    def begin(self, subject: str, transfer: Transfer, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a transfer, which gets the messages on its subject, and those below it, until its work ends.

        Raises ApiError 10023 if too many are under way.
        """
        if len(self._transfers) >= _MOST:
            raise api_error("JSInsufficientResourcesErr")
        self._transfers[subject] = transfer

        async def run() -> None:
            try:
                await work()
            finally:
                del self._transfers[subject]

        task = self._runtime.spawn(run(), f"pelton transfers {subject}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take(self, message: Published) -> bool:
        """Pass a message on to its transfer; False if there is none."""
        subject = message.subject
        found = self._transfers.get(".".join(subject.split(".")[:5]))
        if found is None:
            return False
        found.take(message)
        return True

    async def close(self) -> None:
        """End all transfers."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
