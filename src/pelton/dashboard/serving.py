"""The dashboard on a port of its own, served by uvicorn."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """One that leaves signals to whoever runs the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class DashboardServer:
    """Serves an app on a socket that listens."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        # Viewers of a live page never end their request by themselves.
        self._server = _Server(
            uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )
        self._listener = listener

    async def serve(self) -> None:
        """Serve until :meth:`stop` is called."""
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """End; requests have a second to finish. From any thread."""
        self._server.should_exit = True
