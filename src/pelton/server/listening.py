"""Listening: sockets that accept clients, the TLS handshake, and what a client is told first.

**TLS: a client that connects is greeted before or after its handshake.** NATS tells a client in plain text that TLS is
required, and the client begins its handshake on the same connection. The greeting is written to the socket before any
of the client's bytes are read, so that a quick client's first bytes are never taken for a command. A door may want the
handshake first instead; or wait a moment for it, and greet a client that sends nothing.

**Lets in the users of a configuration; hashes are compared on threads, because that takes a tenth of a second.**
Comparing has threads of its own, one for each processor, so that nothing else waits for it. Who waits for one is asked
in turns by address, so that a flood from one keeps nobody out elsewhere; of one address, the last that came is the
first, because the first ones are those who give up soonest. A client that leaves, or takes too long, waits no more. A
password that was right before is not slow (:class:`PasswordMemory`), and waits for nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import platform
import select
import socket
import stat
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from pelton._version import VERSION
from pelton.api import ConfigError
from pelton.runtime import Clock, Runtime, end_tasks
from pelton.server.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.jetstream_api import API_LEVEL, NATS_VERSION
from pelton.server.settings import Endpoint, ServerSettings, TlsDoor
from pelton.server.users import ConfiguredUsers
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
        await end_tasks(task)
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


_NS: Final = 1_000_000_000
_MOST_WAITING: Final = 256

_T = TypeVar("_T")


class FairChecks:
    """Threads for slow checks, and who waits for one; belongs to one event loop.

    ``most`` is how many checks of an address may wait: the oldest one is given up for another.
    """

    def __init__(self, threads: int, most: int = _MOST_WAITING) -> None:
        self._pool = ThreadPoolExecutor(threads, "pelton-login")
        self._free = threads
        self._most = most
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}

    async def has_turn(self, address: str) -> bool:
        """Wait for a thread, which is to be used at once (:meth:`run`) or given back (:meth:`give_back`).

        False if too many of the address wait.
        """
        if self._free:
            self._free -= 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        turns = self._waiting.setdefault(address, [])
        turns.append(turn)
        if len(turns) > self._most:
            turns.pop(0).set_result(False)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn in turns:
                turns.remove(turn)
                if not turns and self._waiting.get(address) is turns:
                    del self._waiting[address]
            elif not turn.cancelled() and turn.result():
                self.give_back()
            raise

    async def run(self, check: Callable[[], _T]) -> _T:
        """Run a check on the thread whose turn it is."""
        loop = asyncio.get_running_loop()

        def over(_: Future[Any]) -> None:
            # The thread is busy until then, even if nobody waits for the answer any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self.give_back)

        try:
            future = self._pool.submit(check)
        except BaseException:
            self.give_back()
            raise
        future.add_done_callback(over)
        return await asyncio.wrap_future(future)

    def give_back(self) -> None:
        """Let the next one have the thread: the last of the address that has waited longest for its turn."""
        while self._waiting:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.pop()
            if turns:
                self._waiting[address] = turns
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


class ConfiguredDoor:
    """An authenticator for the users of the settings, which may be replaced while the server runs."""

    def __init__(self, users: ConfiguredUsers, clock: Clock) -> None:
        self.users = users
        self._clock = clock
        self._checks = FairChecks(os.cpu_count() or 1)

    def is_required(self, kind: str = "STANDARD") -> bool:
        return self.users.is_required(kind)

    @property
    def wants_nonce(self) -> bool:
        """Whether clients get a text to sign."""
        return self.users.wants_nonce

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user, or why there is none, by the settings as they are when it returns."""
        while self.users.is_slow(credentials):
            if not await self._checks.has_turn(_network_of(credentials.address)):
                return LoginRefusal(f"too many passwords from {credentials.address!r} wait to be checked")
            users = self.users
            if not users.is_slow(credentials):
                # Somebody has shown the same meanwhile, or the user is gone.
                self._checks.give_back()
                break
            now = self._clock.now() / _NS
            answer = await self._checks.run(partial(users.identify, credentials, now))
            if users is self.users:
                return answer
        return self.anonymous(credentials)

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user of those who show nothing."""
        return self.users.identify(credentials, self._clock.now() / _NS)


def _network_of(address: str) -> str:
    """Return what one client may choose its addresses from: for IPv6 that is a network."""
    with suppress(ValueError):
        if ":" in address:
            return str(ipaddress.IPv6Network((address, 64), strict=False))
    return address
