"""Listening: sockets that accept clients, the TLS handshake, and what a client is told first.

**TLS: a client that connects is greeted before or after its handshake.** NATS tells a client in plain text that TLS is
required, and the client begins its handshake on the same connection. The greeting is written to the socket before any
of the client's bytes are read, so that a quick client's first bytes are never taken for a command. A door may want the
handshake first instead; or wait a moment for it, and greet a client that sends nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import select
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from pelton._version import VERSION
from pelton.api import ConfigError
from pelton.runtime import Runtime
from pelton.server.jetstream.verbs import API_LEVEL, NATS_VERSION
from pelton.server.settings import Endpoint, ServerSettings, TlsDoor
from pelton.wire import ServerHello


def introduction(settings: ServerSettings, **known: Any) -> ServerHello:
    """Return what everybody is told of a server; ``known`` are the fields that are not among its settings."""
    return ServerHello(
        version=NATS_VERSION,
        go=f"python{platform.python_version()}",
        git_commit=f"pelton-{VERSION}",
        headers=True,
        tls_required=settings.tls is not None,
        tls_verify=settings.tls is not None and settings.tls.verify,
        max_payload=settings.max_payload,
        domain=settings.domain,
        proto=1,
        api_lvl=API_LEVEL,
        **known,
    )


_HANDSHAKE: Final = 0x16


async def let_in(accepted: socket.socket, make: Callable[[], Any], door: TlsDoor | None) -> None:
    """Make an accepted socket a connection. Raises OSError if the client leaves, or its handshake fails."""
    loop = asyncio.get_running_loop()
    client = make()
    if door is None:
        await loop.connect_accepted_socket(lambda: client, accepted)
        return
    if not await _comes_first(accepted, door):
        async with asyncio.timeout(door.timeout):
            await loop.sock_sendall(accepted, client.greeting(_address(accepted)))
    await loop.connect_accepted_socket(lambda: client, accepted, ssl=door.context, ssl_handshake_timeout=door.timeout)


async def _comes_first(accepted: socket.socket, door: TlsDoor) -> bool:
    """Whether the client begins with its handshake."""
    if isinstance(door.first, bool):
        return door.first
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(accepted, readable.cancel)
    try:
        await asyncio.wait([readable], timeout=door.first)
    finally:
        loop.remove_reader(accepted)
    if not select.select([accepted], [], [], 0)[0]:
        return False
    begun = accepted.recv(1, socket.MSG_PEEK)
    return bool(begun) and begun[0] == _HANDSHAKE


def _address(accepted: socket.socket) -> object:
    try:
        return accepted.getpeername()
    except OSError:
        return None


# --- listening: sockets that accept clients, TCP (IPv4 and IPv6) and Unix

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
