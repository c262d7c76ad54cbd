"""The limits and usage of an open store: NATS calls this an account.

The limits belong to this opening: requests made through it are checked, and the limits are not kept in the store.
Reservations are the ``max_bytes`` of its streams, as on a NATS server; a stream without ``max_bytes`` reserves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pelton.api import AccountInfo, AccountLimits, ApiError, ConsumerLimits, StreamConfig, api_error
from pelton.api.config import MAX_ACK_PENDING, Storage
from pelton.api.info import ApiStats
from pelton.streams import StreamLog


def most_bytes(limits: AccountLimits, storage: Storage) -> int:
    """Return how many bytes all streams of a kind of storage may have together; -1 for any number."""
    return limits.max_memory if storage == "memory" else limits.max_storage


class StoreContents(Protocol):
    """The streams and consumers in the store."""

    @property
    def streams(self) -> Mapping[str, StreamLog]: ...
    @property
    def num_consumers(self) -> int: ...
    def use(self, log: StreamLog, /) -> StreamLog: ...


class Account:
    """The limits of one opening, and the number of its API requests."""

    def __init__(self, contents: StoreContents, limits: AccountLimits) -> None:
        self._contents = contents
        self.limits = limits
        self._api = ApiStats()
        # What at least may be stored still in the open transaction: not all streams are asked for each message.
        self.room: dict[Storage, int] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count one request, and also count it as an error if it raises."""
        try:
            yield
        except ApiError:
            self._api.errors += 1
            raise
        finally:
            self._api.total += 1

    def count(self, *, is_refused: bool) -> None:
        """Count a request that was answered elsewhere."""
        self._api.errors += is_refused
        self._api.total += 1

    def info(self) -> AccountInfo:
        """Return what is used, reserved and allowed; ``api`` counts the requests of this opening."""
        contents = self._contents
        return AccountInfo(
            memory=self._stored_bytes("memory"),
            storage=self._stored_bytes("file"),
            reserved_memory=self._reserved_bytes("memory"),
            reserved_storage=self._reserved_bytes("file"),
            streams=len(contents.streams),
            consumers=contents.num_consumers,
            limits=self.limits,
            api=ApiStats(total=self._api.total, errors=self._api.errors),
        )

    @property
    def has_quota(self) -> bool:
        """Whether the bytes of all streams together are limited."""
        return self.limits.max_storage >= 0 or self.limits.max_memory >= 0

    # --- streams

    def check_number(self) -> None:
        """Refuse another stream if the limit is reached (10027); 0 is none, as on a NATS server."""
        if 0 < self.limits.max_streams <= len(self._contents.streams):
            raise api_error("JSMaximumStreamsLimitErr")

    def check_bytes(self, config: StreamConfig) -> None:
        """Refuse a ``max_bytes`` that is missing (10113) or too large (10122)."""
        limits, memory = self.limits, config.storage == "memory"
        if limits.max_bytes_required and config.max_bytes <= 0:
            raise api_error("JSStreamMaxBytesRequired", stream=config.name)
        most = limits.memory_max_stream_bytes if memory else limits.storage_max_stream_bytes
        if 0 < most < config.max_bytes:
            raise api_error("JSStreamMaxStreamBytesExceeded", stream=config.name)

    def check_reservation(self, config: StreamConfig, old: StreamConfig | None = None) -> None:
        """Refuse a reservation beyond the limit (10028, 10047); a new stream needs at least one byte."""
        before = max(old.max_bytes, 0) if old is not None else 0
        more = max(config.max_bytes - before, 0) if old is not None else max(config.max_bytes, 1)
        if 0 <= most_bytes(self.limits, config.storage) < self._reserved_bytes(config.storage) + more:
            constant = "JSMemoryResourcesExceededErr" if config.storage == "memory" else "JSStorageResourcesExceededErr"
            raise api_error(constant, stream=config.name)

    # --- consumers

    def consumer_limits(self, limits: ConsumerLimits) -> ConsumerLimits:
        """Return a stream's consumer limits, with the account's where the stream sets none."""
        most = self.limits.max_ack_pending
        if most <= 0 or limits.max_ack_pending:
            return limits
        return ConsumerLimits(inactive_threshold=limits.inactive_threshold, max_ack_pending=min(MAX_ACK_PENDING, most))

    def check_consumer(self, max_ack_pending: int, stream: str, name: str) -> None:
        """Refuse a consumer whose ``max_ack_pending`` is above the limit (10121)."""
        most = self.limits.max_ack_pending
        if 0 < most < max_ack_pending:
            raise api_error("JSConsumerMaxPendingAckExcessErrF", stream=stream, consumer=name, limit=most)

    def check_consumers(self, config: StreamConfig, others: int, name: str) -> None:
        """Refuse another consumer of a stream beyond its own limit or the account's (10026); 0 is none."""
        for most in (config.max_consumers, self.limits.max_consumers):
            if 0 < most <= others:
                raise api_error("JSMaximumConsumersLimitErr", stream=config.name, consumer=name)

    # --- use

    def check_quota(self, storage: Storage, size: int) -> None:
        """Refuse bytes that exceed the limit for all streams together (10002)."""
        most, room = most_bytes(self.limits, storage), self.room.get(storage, -1)
        if most < 0:
            return
        if room < size and (room := most - self._stored_bytes(storage)) < size:
            raise api_error("JSAccountResourcesExceededErr")
        self.room[storage] = room - size

    def _stored_bytes(self, storage: Storage) -> int:
        use, streams = self._contents.use, list(self._contents.streams.values())
        return sum(use(log).state.bytes for log in streams if log.config.storage == storage)

    def _reserved_bytes(self, storage: Storage) -> int:
        configs = (log.config for log in self._contents.streams.values())
        return sum(max(config.max_bytes, 0) for config in configs if config.storage == storage)
