"""Listening: sockets that accept clients, TCP (IPv4 and IPv6) and Unix."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from pelton.api import ConfigError
from pelton.runtime import Runtime
from pelton.server.settings import Endpoint

Accept = Callable[[socket.socket], Awaitable[None]]
_BACKLOG: Final = 1024
_PAUSE_S: Final = 0.1
# So many are accepted in one round of the event loop.
_AT_ONCE: Final = 4


class Listener:
    """One place where clients connect; ``accept`` takes each connection."""

    def __init__(self, endpoint: Endpoint, accept: Accept, runtime: Runtime) -> None:
        self._endpoint = endpoint
        self._accept = accept
        self._runtime = runtime
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens; with the port that it got."""
        return self._endpoint

    def open(self) -> None:
        """Begin to listen. Raises ConfigError if the address cannot be used."""
        try:
            self._socket = _unix(self._endpoint.path) if self._endpoint.path else _tcp(self._endpoint)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._endpoint}: {error.strerror or error}") from None
        self._socket.setblocking(False)
        if not self._endpoint.path:
            self._endpoint = Endpoint(host=self._endpoint.host, port=self._socket.getsockname()[1])
        self._task = self._runtime.spawn(self._run(self._socket), f"pelton listens on {self._endpoint}")

    async def _run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for count in itertools.count(1):
            if not count % _AT_ONCE:
                # Many can be waiting, which are accepted without a pause, and each costs the next round something.
                await asyncio.sleep(0)
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError:
                # The client is gone already, or there are too many open files.
                await self._runtime.clock.sleep(_PAUSE_S)
                continue
            with suppress(OSError):
                client.setblocking(False)
                if client.family != socket.AF_UNIX:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._runtime.spawn(self._take(client), "pelton accepts a client")

    async def _take(self, client: socket.socket) -> None:
        try:
            await self._accept(client)
        except OSError:
            client.close()

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if self._endpoint.path:
                with suppress(OSError):
                    os.unlink(self._endpoint.path)


def _tcp(endpoint: Endpoint) -> socket.socket:
    port = max(endpoint.port, 0)
    family, _, _, _, address = socket.getaddrinfo(
        endpoint.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that was killed can be started again at once.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if endpoint.host == "::" else 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _unix(path: str) -> socket.socket:
    _remove_left_over(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _remove_left_over(path: str) -> None:
    """Remove the socket of a server that died; one that still listens stays, and binding fails."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
