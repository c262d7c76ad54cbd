"""Records in streams: compared and set, followed through outages, and kept over a connection of one's own.

**Records that are compared and set: each is only written if it is still the one that its writer has seen.** A publish
whose reply is lost is repeated with the same message id, and counts once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from pelton.api import (
    Backend,
    JetStreamMissingError,
    PeltonError,
    ServerTimeoutError,
    ServerUnreachableError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    WrongLastSequenceError,
    headers,
)
from pelton.api.errors import is_passing
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.message_source import OrderedReader
from pelton.jet.stream import at_leader
from pelton.runtime import Clock, within

if TYPE_CHECKING:
    from logging import Logger

    from pelton.api import Delivered
    from pelton.jet.streams import Streams

R = TypeVar("R")


class MovedError(PeltonError):
    """A record has changed since it was seen; ``seq`` is the present one if the server reports it."""

    def __init__(self, key: str, seq: int | None) -> None:
        super().__init__(f"another process has changed the record {key!r}")
        self.seq = seq


class StoredRecord(NamedTuple, Generic[R]):
    """A record, and its sequence in the stream; None and 0 if there is none."""

    seq: int
    record: R | None


class Register(Generic[R]):
    """The records of a stream, by key: what follows ``prefix`` in their subjects.

    ``ttl`` returns for how many seconds a record is to be kept; 0: for ever.
    """

    def __init__(
        self,
        backend: Backend,
        stream: str,
        prefix: str,
        encode: Callable[[R], bytes],
        decode: Callable[[bytes], R],
        ttl: Callable[[R], int],
    ) -> None:
        self._backend = backend
        self._stream, self._prefix = stream, prefix
        self._encode, self._decode, self._ttl = encode, decode, ttl

    def over(self, backend: Backend) -> Self:
        """Return the same records over another connection."""
        other = copy(self)
        other._backend = backend
        return other

    async def read(self, key: str) -> StoredRecord[R]:
        """Return the present record, from the stream's leader."""
        stored = await at_leader(self._backend, self._stream, last_by_subj=self._prefix + key)
        return StoredRecord(0, None) if stored is None else StoredRecord(stored.seq, self._decode(stored.data))

    async def write(self, key: str, record: R, seen: int) -> int:
        """Replace a record and return its sequence. Raises MovedError if ``seen`` is not the present one."""
        block = {headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(seen)}
        if ttl := self._ttl(record):
            block[headers.TTL] = f"{ttl}s"
        try:
            ack = await self._backend.publish(self._prefix + key, self._encode(record), headers.encode(block))
        except WrongLastSequenceError as error:
            raise MovedError(key, error.seq) from None
        return ack.seq


# --- following what a stream holds and all that comes to it, for ever and through outages

T = TypeVar("T")
_HEARTBEAT_S: Final = 1.0


def last_and_new(jet: Streams, stream: str, **fields: Any) -> AsyncGenerator[Delivered | None, None]:
    """Yield the last message of each subject, then None, then all that come."""
    fields = {"heartbeat": _HEARTBEAT_S, "deliver_policy": "last_per_subject", **fields}
    return OrderedReader(jet.backend, jet.runtime, stream, **fields).follow()


class Follower(Generic[T]):
    """Calls ``saw`` with what ``opened`` yields, which is opened again when it ends or fails.

    ``opened`` yields None once, after all that was there. ``failed`` waits until it is time to go on, or raises an
    error that ends it; ``answered`` is called whenever something comes.
    """

    def __init__(
        self,
        opened: Callable[[], AsyncGenerator[T | None, None]],
        saw: Callable[[T | None], Awaitable[None]],
        failed: Callable[[Exception], Awaitable[None]],
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._opened = opened
        self._saw = saw
        self._failed = failed
        self._answered = answered
        self._begun: AsyncGenerator[T | None, None] | None = None

    async def begin(self) -> None:
        """Follow until all has come that was there. Raises the first error; :meth:`close` it afterwards."""
        opened = self._opened()
        async for one in opened:
            await self._saw(one)
            if one is None:
                self._begun = opened
                return

    async def follow(self) -> None:
        """Follow for ever, from where :meth:`begin` ended."""
        while True:
            try:
                opened, self._begun = self._begun or self._opened(), None
                async with aclosing(opened):
                    async for one in opened:
                        self._answered()
                        await self._saw(one)
            except Exception as error:  # which it is says the user
                await self._failed(error)

    async def close(self) -> None:
        """End what was begun, and is not followed."""
        begun, self._begun = self._begun, None
        if begun is not None:
            await begun.aclose()


# --- failures to outlast: a store that is busy or full, and a cluster whose servers are away or elect a leader

ASK_AGAIN_S: Final = 0.5
_PASSING: Final = (StoreBusyError, StoreFullError, ServerUnreachableError, ServerTimeoutError, JetStreamMissingError)


def can_pass(error: Exception) -> bool:
    """Whether the store, or the servers, may recover without help from the user."""
    return isinstance(error, _PASSING) or is_passing(error)


def is_busy(error: Exception) -> bool:
    """Whether it is worth trying again."""
    return not isinstance(error, FINAL_ERRORS) and (isinstance(error, StoreError) or can_pass(error))


async def until_answered(
    clock: Clock, ask: Callable[[], Awaitable[R]], check: Callable[[], Awaitable[object]] | None = None
) -> R:
    """Ask again while the store is busy or away, and return the answer; each time, ``check`` may raise before."""
    while True:
        try:
            return await ask()
        except PeltonError as error:
            if not is_busy(error):
                raise
        await clock.sleep(ASK_AGAIN_S)
        if check is not None:
            await check()


class Outage:
    """The times during which the store does not answer ``who``: logged as they begin and end.

    ``passes`` says which errors to wait after; the others are raised. ``extra`` are fields of what is logged.
    """

    def __init__(
        self, log: Logger, clock: Clock, who: str, passes: Callable[[Exception], bool] = can_pass, **extra: object
    ) -> None:
        self._log = log
        self._clock = clock
        self._who = who
        self._passes = passes
        self._extra = extra
        self._since: float | None = None

    async def wait(self, error: Exception) -> None:
        """Wait until it is time to retry; raises ``error`` if a retry would be pointless."""
        if not self._passes(error):
            raise error
        if self._since is None:
            self._since = self._clock.monotonic()
            self._log.warning(
                "%s waits for its store, without a time limit: %s", self._who, error, extra={**self._extra}
            )
        await self._clock.sleep(ASK_AGAIN_S)

    def end(self) -> None:
        """End the outage: the store has answered."""
        if self._since is not None:
            lasted, self._since = self._clock.monotonic() - self._since, None
            self._log.warning(
                "%s resumes: its store did not answer for %.1f s",
                self._who,
                lasted,
                extra={**self._extra, "seconds": lasted},
            )


# --- a separate connection for keeping leases, independent of the program that uses the store


class Closing(Protocol):
    """A connection, or what goes with one, that can be closed."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closing)


class OwnConnection(Generic[C]):
    """A connection that ``clone`` opens on first use; closed when it fails, and opened again.

    ``store_ended`` is called with the error if it can't be opened any more, because the original store is closed.
    Closing one takes ``patience`` seconds at most.
    """

    def __init__(
        self, clone: Callable[[], C], clock: Clock, patience: float, store_ended: Callable[[Exception], None]
    ) -> None:
        self._clone = clone
        self._clock = clock
        self._patience = patience
        self._store_ended = store_ended
        self._open: C | None = None

    def get(self) -> C:
        """Return the connection, opening it if necessary. Raises what cloning raises."""
        if self._open is None:
            try:
                self._open = self._clone()
            except FINAL_ERRORS as error:
                self._store_ended(error)
                raise
        return self._open

    async def leave(self) -> None:
        left, self._open = self._open, None
        if left is not None:
            with suppress(PeltonError, TimeoutError):
                await within(self._clock, self._patience, left.close())
