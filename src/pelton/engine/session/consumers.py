"""The consumers of one open store, in memory: by name, by stream, and the push consumers.

A store may have very many. So a change touches only the consumer that changes; when another process has changed some,
consumers whose configuration row is the same are kept; and only loaded states are marked stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from pelton.api import ConsumerConfig
from pelton.api.durations import dec_hook
from pelton.consumers import NEVER, ConsumerLog, drop_rows
from pelton.storage import Database, decoded, token_floor
from pelton.streams import Advisories, StreamLog

_decode: Final = msgspec.json.Decoder(ConsumerConfig, dec_hook=dec_hook).decode


class _ConsumerRow(NamedTuple):
    id: int
    stream: int
    config: bytes
    created: int
    token_floor: int


class ConsumerRegistry:
    """``by_name`` has all consumers, ``pushed`` those that push, ``pushed_of`` those of each stream, by its row id."""

    token_floor: int

    def __init__(self, database: Database, advisories: Advisories) -> None:
        self._db = database
        self._advisories = advisories
        # The store's token floor (``token_floor.py``).
        self.token_floor = 0
        self.by_name: dict[tuple[str, str], ConsumerLog] = {}
        self.pushed: dict[tuple[str, str], ConsumerLog] = {}
        self.pushed_of: dict[int, set[ConsumerLog]] = {}
        self._by_stream: dict[str, dict[str, ConsumerLog]] = {}
        self._configs: dict[int, bytes] = {}
        self._loaded: set[ConsumerLog] = set()
        # No consumer expires before this time.
        self._next_sweep = 0

    def load(self, streams: Mapping[int, StreamLog]) -> None:
        """Read all consumers from their rows."""
        self.token_floor = token_floor(self._db)
        known, configs = {consumer.id: consumer for consumer in self.by_name.values()}, self._configs
        self.by_name.clear()
        self.pushed.clear()
        self.pushed_of.clear()
        self._by_stream, self._configs = {}, {}
        sql = "SELECT id, stream, config, created, token_floor FROM consumers ORDER BY id"
        for row in decoded(_ConsumerRow, self._db.execute(sql).fetchall()):
            consumer = known.get(row.id)
            if consumer is None:
                config = _decode(row.config)
                consumer = self._made(row.id, streams[row.stream], config, row.created, row.token_floor)
            elif configs.get(row.id) != row.config:
                consumer.configure(_decode(row.config))
            self.add(consumer, row.config)
        # Do not keep deleted consumers in memory.
        self._loaded.intersection_update(self.by_name.values())

    def add(self, consumer: ConsumerLog, raw: bytes) -> None:
        """Register a new or changed consumer; ``raw`` is its encoded configuration."""
        key = (consumer.log.name, consumer.name)
        self._configs[consumer.id] = raw
        self.by_name[key] = consumer
        self._by_stream.setdefault(consumer.log.name, {})[consumer.name] = consumer
        self._forget_pushed(key)
        if consumer.config.deliver_subject:
            self.pushed[key] = consumer
            self.pushed_of.setdefault(consumer.log.id, set()).add(consumer)
        self._next_sweep = 0

    def _forget_pushed(self, key: tuple[str, str]) -> None:
        consumer = self.pushed.pop(key, None)
        if consumer is not None:
            of_stream = self.pushed_of[consumer.log.id]
            of_stream.discard(consumer)
            if not of_stream:
                del self.pushed_of[consumer.log.id]

    def create(self, row_id: int, log: StreamLog, config: ConsumerConfig, raw: bytes, now: int) -> None:
        """Register a consumer that was just created."""
        next_sweep = self._next_sweep
        self.add(self._made(row_id, log, config, now, self.token_floor), raw)
        threshold = config.inactive_threshold.ns
        self._next_sweep = min(next_sweep, now + threshold) if threshold > 0 else next_sweep

    def _made(self, row_id: int, log: StreamLog, config: ConsumerConfig, created: int, floor: int) -> ConsumerLog:
        return ConsumerLog(
            self._db, row_id, log, config, created, self._advisories, token_floor=floor, loaded=self._loaded
        )

    def drop(self, consumer: ConsumerLog) -> None:
        key = stream, name = consumer.log.name, consumer.name
        del self.by_name[key], self._by_stream[stream][name], self._configs[consumer.id]
        if not self._by_stream[stream]:
            del self._by_stream[stream]
        self._forget_pushed(key)
        self._loaded.discard(consumer)

    def drop_rows(self, consumers: Sequence[ConsumerLog]) -> None:
        """Remove all rows of deleted consumers, whose state is fresh."""
        drop_rows(self._db, [consumer.id for consumer in consumers])
        if given := max((consumer.dseq for consumer in consumers), default=0):
            # New consumers may reuse their names, and number deliveries from 1 again.
            self._db.execute("UPDATE meta SET value=value+? WHERE key='token_floor'", (given,))
            self.token_floor += given

    def of(self, stream: str) -> list[ConsumerLog]:
        return list(self._by_stream.get(stream, {}).values())

    # --- their states

    def doubt(self) -> None:
        """Mark loaded states as stale: another process has written."""
        for consumer in self._loaded:
            consumer.stale = True
        self._loaded.clear()

    def reset(self) -> None:
        """Discard everything that was not committed."""
        for consumer in self._loaded:
            consumer.reset()
        self._loaded.clear()

    def idle(self, now: int, use: Callable[[ConsumerLog], ConsumerLog]) -> list[ConsumerLog]:
        """Return the consumers that were not used for their ``inactive_threshold``."""
        idle: list[ConsumerLog] = []
        if now < self._next_sweep:
            return idle
        # Use only postpones expiry, so no consumer needs a check before the earliest of these times.
        soonest = NEVER
        for consumer in self.by_name.values():
            if consumer.config.inactive_threshold.ns > 0:
                if use(consumer).is_idle(now):
                    idle.append(consumer)
                soonest = min(soonest, consumer.idle_from())
        self._next_sweep = soonest
        return idle
