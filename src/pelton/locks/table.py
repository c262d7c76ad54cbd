"""The bucket that locks are kept in: reads, writes, watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from pelton.api import (
    ApiError,
    ConfigError,
    DirectGet,
    MessageNotFoundError,
    NoStreamForSubjectError,
    StreamConfig,
    StreamCreate,
    StreamInfoRequest,
    StreamNotFoundError,
    headers,
)
from pelton.buckets import reserve_first_token
from pelton.buckets.entry import OPERATION_HEADER, operation_of
from pelton.jet import Streams
from pelton.jet.ordered import OrderedReader
from pelton.jet.readable import at_leader
from pelton.locks.records import LockRow

T = TypeVar("T")
BUCKET: Final = "pelton_locks"
_STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}."
# How long the store keeps the marker of a release or expiry: unused names leave nothing behind.
_TRACE_S: Final = 60
_NAME_IN_USE: Final = 10058
_AGED: Final = "MaxAge"
_DELETED: Final = {OPERATION_HEADER: "DEL"}


class LockTable:
    """Keys of the bucket ``pelton_locks``, which is created when it is first needed."""

    def __init__(self, jet: Streams) -> None:
        self._jet = jet
        self._is_ready = False
        self.has_steady_time: bool = jet.backend.planning.steady_time

    async def read(self, filters: Iterable[str]) -> list[LockRow]:
        """Return the content of some keys; on a cluster a replica may answer, which lags behind."""
        request = DirectGet(multi_last=tuple(_PREFIX + text for text in filters))

        async def read() -> list[LockRow]:
            try:
                found = (await self._jet.backend.direct_get(_STREAM, request)).messages
            except MessageNotFoundError:
                return []
            return [_row(one.subject.removeprefix(_PREFIX), one.seq, one.time_ns, one.hdrs, one.data) for one in found]

        return await self._in_bucket(read)

    async def ask(self, key: str) -> LockRow | None:
        """Return the content of a key, from the leader."""
        with suppress(StreamNotFoundError):
            if (found := await at_leader(self._jet.backend, _STREAM, last_by_subj=_PREFIX + key)) is not None:
                return _row(key, found.seq, found.time_ns, found.hdrs, found.data)
        return None

    async def write(self, key: str, data: bytes, expected: int | None, ttl: int) -> int:
        """Write a key if ``expected`` is its last revision (0: there is none), for ``ttl`` seconds.

        Return its revision. Raises WrongLastSequenceError.
        """

        async def write() -> int:
            return (await self._jet.publish(_PREFIX + key, data, expected_last_subject_seq=expected, ttl=ttl)).seq

        return await self._in_bucket(write)

    async def remove(self, key: str, expected: int | None = None) -> None:
        """Remove a key if ``expected`` is its last revision. Raises WrongLastSequenceError."""
        await self._jet.publish(_PREFIX + key, headers=_DELETED, expected_last_subject_seq=expected, ttl=_TRACE_S)

    async def presence(self) -> str:
        """Return the name by which others can ask whether this backend is still open."""
        return await self._jet.backend.presence()

    async def is_gone(self, presence: str) -> bool:
        """Whether another backend is known to be gone."""
        return await self._jet.backend.is_gone(presence)

    async def watch(self, filters: Iterable[str]) -> AsyncGenerator[LockRow | None, None]:
        """Watch some keys: yields their current content, then None, then their changes."""
        subjects = [_PREFIX + text for text in filters]
        fields: dict[str, Any] = {"deliver_policy": "last_per_subject", "filter_subjects": subjects}
        reader = OrderedReader(self._jet.backend, self._jet.runtime, _STREAM, **fields)
        await self._in_bucket(reader.begin)
        async with aclosing(reader.follow()) as deliveries:
            async for one in deliveries:
                key = "" if one is None else one.subject.removeprefix(_PREFIX)
                yield None if one is None else _row(key, one.seq, one.time_ns, one.headers, one.data)

    async def _in_bucket(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Execute an operation in the bucket, creating it if necessary, even if it is removed in between."""
        if not self._is_ready:
            await self._make()
        try:
            return await operation()
        except (StreamNotFoundError, NoStreamForSubjectError):
            await self._make()
            return await operation()

    async def _make(self) -> None:
        try:
            config = (await self._jet.backend.call(StreamInfoRequest(name=_STREAM))).config
        except StreamNotFoundError:
            config = await self._create()
        if not config.allow_msg_ttl or not config.allow_direct:
            raise ConfigError(f"bucket {BUCKET!r} was created without limit_marker_ttl, which locks need: delete it")
        self._is_ready = True

    async def _create(self) -> StreamConfig:
        config = StreamConfig(
            name=_STREAM,
            description="locks, semaphores and who waits for them",
            subjects=(_PREFIX + ">",),
            max_msgs_per_subject=1,
            discard="new",
            duplicate_window=120,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            allow_msg_ttl=True,
            subject_delete_marker_ttl=_TRACE_S,
            first_seq=await reserve_first_token(self._jet, _STREAM),
        )
        try:
            return (await self._jet.backend.call(StreamCreate(config=config))).config
        except ApiError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            # Another process was faster.
            return (await self._jet.backend.call(StreamInfoRequest(name=_STREAM))).config


def _row(key: str, seq: int, time_ns: int, block: bytes | None, data: bytes) -> LockRow:
    if not block or operation_of(block) == "put":
        return LockRow(key, seq, data, time_ns)
    return LockRow(key, seq, None, time_ns, headers.first(block, headers.MARKER_REASON) == _AGED)
