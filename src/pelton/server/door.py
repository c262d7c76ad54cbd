"""Lets in the users of a configuration; hashes are compared on threads, because that takes a tenth of a second.

Design: comparing has threads of its own, one for each processor, so that nothing else waits for it. Who waits for one
is asked in turns by address, so that a flood from one keeps nobody out elsewhere; of one address, the last that came is
the first, because the first ones are those who give up soonest. A client that leaves, or takes too long, waits no more.
A password that was right before is not slow (:class:`PasswordMemory`), and waits for nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from pelton.runtime import Clock
from pelton.server.auth import ConfiguredUsers, Credentials, LoginRefusal, ServerUser

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
        """Whether a client without credentials is refused, that connects by ``kind``."""
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
