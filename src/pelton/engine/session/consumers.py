"""The consumers of one open store, in memory, and the push consumers that receive a message in its transaction.

**The consumers of one open store, in memory: by name, by stream, and the push consumers.** A store may have very many.
So each is made when it is first used, a change touches only the consumer that changes, and only loaded states are
marked stale.

**Push consumers receive a message in the transaction that stores it, before another one can replace it.** A pump
(``delivery/pushes.py``) reads what its consumer has not received after it was committed. By then, the limits of the
stream may have removed it: in a bucket that keeps one revision of a key, the next write does. So when limits are about
to be applied to a stream, its push consumers first receive everything that it holds, whichever process writes:
subscribers of this process in memory, those of others through the outbox (``bus.py``).

What waits for a subscriber is bounded. A consumer that is further behind, because its subscriber reads too slowly or is
still receiving what was there before, is left to its pump, and misses what is replaced meanwhile. So is one
whose configuration holds messages back: a rate limit, or acks by flow control.

**A source takes what a durable consumer delivers (ADR-60), in the transaction that makes it deliverable.** On a NATS
server, the stream with the source subscribes to the consumer's deliver subject, stores what arrives, and acknowledges
it by flow control. Here it is delivered, stored and settled in one transaction, with the consumer's own rules: its
filters, its start, its pace and its pauses. The consumer shows the progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from pelton.api import (
    AckOp,
    ApiError,
    ConsumerConfig,
    CorruptConfigError,
    Delivered,
    Incoming,
    PullRequest,
    SourceConsumer,
    api_error,
)
from pelton.api.events import Event
from pelton.consumers import NEVER, ConsumerLog, Delivery, Settlement, drop_rows
from pelton.engine.bus import Bus
from pelton.engine.session.catalogue import ConsumerRow, Key, LazyMapping
from pelton.sourcing.link import Kind
from pelton.storage import DamagedRowError, Database, MessageRow, integer, text, token_floor
from pelton.storage.messages import row_checksum
from pelton.streams import StreamLog
from pelton.streams.rules import decode_config

_CONSUMERS: Final = "SELECT id, stream, CAST(name AS BLOB), config, created, token_floor FROM consumers"


class ConsumerRegistry:
    """``by_name`` has all consumers, ``pushed`` those that push, ``pushed_of`` those of each stream, by its row id.

    ``streams`` has the streams by name.
    """

    token_floor: int

    def __init__(self, database: Database, streams: Mapping[str, StreamLog], advise: Callable[[Event], None]) -> None:
        self._db = database
        self._streams = streams
        self._advise = advise
        # The store's token floor (``storage/copies.py``).
        self.token_floor = 0
        self.by_name: LazyMapping[Key, ConsumerRow, ConsumerLog] = LazyMapping(self._made)
        self.pushed: dict[Key, ConsumerLog] = {}
        self.pushed_of: dict[int, set[ConsumerLog]] = {}
        # The names of the consumers of each stream, and those that expire if they are not used.
        self._by_stream: dict[str, dict[str, None]] = {}
        self._mortal: dict[Key, None] = {}
        self._keys: dict[int, Key] = {}
        self._loaded: set[ConsumerLog] = set()
        # No consumer expires before this time.
        self._next_sweep = 0

    def load(self, streams: Mapping[int, str]) -> list[Key]:
        """Read the rows of all consumers of some streams; return those that are damaged."""
        self.load_floor()
        rows, made = self.by_name.rows, self.by_name.made
        self.by_name.rows, self.by_name.made = {}, {}
        for known in (self.pushed, self.pushed_of, self._by_stream, self._mortal, self._keys):
            known.clear()
        damaged = []
        for row_id, stream, name, *rest in self._db.execute(f"{_CONSUMERS} ORDER BY id").fetchall():
            if (of := streams.get(integer(stream))) is None:
                # The stream is damaged itself.
                continue
            try:
                row = ConsumerRow.of(row_id, of, name, *rest)
                if (old := rows.get(row.key)) is not None and old.id == row.id and row.key in made:
                    self.by_name.rows[row.key], self.by_name.made[row.key] = old, made[row.key]
                self.put(row)
            except DamagedRowError:
                damaged.append((of, text(name)))
                self.by_name.pop(damaged[-1])
        # Do not keep deleted consumers in memory.
        self._loaded.intersection_update(self.by_name.made.values())
        return damaged

    def load_floor(self) -> None:
        """Read the store's token floor."""
        self.token_floor = token_floor(self._db)

    def load_one(self, row_id: int, streams: Mapping[int, str]) -> str:
        """Read the row of a consumer that may be new, changed or deleted; return its stream. Raises DamagedRowError."""
        found = self._db.execute(f"{_CONSUMERS} WHERE id=?", (row_id,)).fetchone()
        if found is None or (stream := streams.get(integer(found[1]))) is None:
            key = self._keys.get(row_id)
            if key is None:
                return ""
            self.drop(key)
            return key[0]
        self.put(ConsumerRow.of(row_id, stream, *found[2:]))
        return stream

    def put(self, row: ConsumerRow) -> None:
        """Register a new or changed consumer."""
        key, consumer = row.key, self.by_name.made.get(row.key)
        if consumer is not None:
            if consumer.id != row.id:
                self.drop(key)
            elif self.by_name.rows[key].raw != row.raw:
                consumer.configure(decode_config(ConsumerConfig, row.raw))
            consumer.token_floor = row.floor
        self.by_name.rows[key] = row
        self._keys[row.id] = key
        self._by_stream.setdefault(row.stream, {})[row.name] = None
        self._forget_pushed(key)
        if row.digest.deliver_subject and (pushed := self.by_name.get(key)) is not None:
            self.pushed[key] = pushed
            self.pushed_of.setdefault(pushed.log.id, set()).add(pushed)
        self._mortal.pop(key, None)
        if row.digest.inactive_threshold > 0:
            self._mortal[key] = None
        self._next_sweep = 0

    def _forget_pushed(self, key: Key) -> None:
        consumer = self.pushed.pop(key, None)
        if consumer is not None:
            of_stream = self.pushed_of[consumer.log.id]
            of_stream.discard(consumer)
            if not of_stream:
                del self.pushed_of[consumer.log.id]

    def create(self, row: ConsumerRow) -> None:
        """Register a consumer that was just created."""
        next_sweep = self._next_sweep
        self.put(row)
        threshold = row.digest.inactive_threshold
        self._next_sweep = min(next_sweep, row.created + threshold) if threshold > 0 else next_sweep

    def _made(self, row: ConsumerRow) -> ConsumerLog:
        log, loaded = self._streams[row.stream], self._loaded
        try:
            config = decode_config(ConsumerConfig, row.raw)
        except DamagedRowError as error:
            raise CorruptConfigError(row.stream, row.name, self._db.path) from error
        return ConsumerLog(
            self._db, row.id, log, config, row.created, self._advise, token_floor=row.floor, loaded=loaded
        )

    def drop(self, key: Key) -> None:
        stream, name = key
        self._forget_pushed(key)
        self._loaded.discard(self.by_name.made.get(key))
        del self._by_stream[stream][name], self._keys[self.by_name.rows[key].id]
        if not self._by_stream[stream]:
            del self._by_stream[stream]
        self._mortal.pop(key, None)
        self.by_name.pop(key)

    def drop_rows(self, consumers: Sequence[ConsumerLog]) -> None:
        """Remove all rows of deleted consumers, whose state is fresh."""
        drop_rows(self._db, [consumer.id for consumer in consumers])
        # New consumers may reuse their names, and number deliveries from 1 again.
        self._raise_floor(max((consumer.dseq for consumer in consumers), default=0))

    def number_again(self, consumer: ConsumerLog) -> None:
        """Let a consumer number its deliveries from 1 again; the tokens of those so far belong to an earlier one."""
        self._raise_floor(consumer.dseq)
        self._db.execute("UPDATE consumers SET token_floor=? WHERE id=?", (self.token_floor, consumer.id))
        self.put(msgspec.structs.replace(self.row_of(consumer), floor=self.token_floor))
        consumer.dseq, consumer.dirty = 0, True

    def _raise_floor(self, given: int) -> None:
        if given:
            self._db.execute("UPDATE meta SET value=value+? WHERE key='token_floor'", (given,))
            self.token_floor += given

    def row_of(self, consumer: ConsumerLog) -> ConsumerRow:
        return self.by_name.rows[consumer.log.name, consumer.name]

    def of(self, stream: str) -> list[ConsumerLog]:
        return [self.by_name[stream, name] for name in self._by_stream.get(stream, ())]

    def rows_of(self, stream: str) -> list[ConsumerRow]:
        return [self.by_name.rows[stream, name] for name in self._by_stream.get(stream, ())]

    # --- their states

    def reset(self) -> None:
        """Discard everything that was not committed, or was counted by a snapshot before others have written."""
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
        for consumer in map(self.by_name.__getitem__, self._mortal):
            if use(consumer).is_idle(now):
                idle.append(consumer)
            soonest = min(soonest, consumer.idle_from())
        self._next_sweep = soonest
        return idle


_log: Final = logging.getLogger("pelton.engine")
# So much is delivered at most within the transaction of a writer.
_MOST: Final = 16_384
_MOST_BYTES: Final = 16 << 20


class PushRegistry(Protocol):
    """The owner of the streams and consumers."""

    consumers: ConsumerRegistry

    def use(self, log: StreamLog, /) -> StreamLog: ...
    def use_consumer(self, consumer: ConsumerLog, /) -> ConsumerLog: ...
    def delivery(self, consumer: ConsumerLog, request: PullRequest, now: int, /) -> Delivery: ...
    def settlement(self, consumer: ConsumerLog, now: int, /) -> Settlement: ...


class LivePushes:
    """Delivers to the subscribers of ``bus`` what the open transaction has stored in the streams of ``owner``."""

    def __init__(self, owner: PushRegistry, bus: Bus, now: Callable[[], int]) -> None:
        self._owner = owner
        self._bus = bus
        self._now = now
        self._late: set[int] = set()

    @property
    def streams(self) -> Container[int]:
        """The row ids of streams that have push consumers."""
        return self._owner.consumers.pushed_of

    def deliver(self, stream: int) -> None:
        """Deliver what a stream holds to its push consumers; everything that was changed so far is written."""
        bus, consumers = self._bus, self._owner.consumers.pushed_of.get(stream, ())
        is_routed, bus.is_routed = bus.is_routed, False
        try:
            for consumer in sorted(consumers, key=attrgetter("id")):
                config = consumer.config
                if not config.rate_limit_bps and config.ack_policy != "flow_control":
                    self._deliver(consumer)
        finally:
            bus.is_routed = is_routed

    def _deliver(self, consumer: ConsumerLog) -> None:
        reserve = self._bus.reserve(consumer.config)
        if reserve is None:
            return
        self._owner.use(consumer.log)
        now, room = self._now(), min(reserve, _MOST)
        if self._owner.use_consumer(consumer).is_idle(now):
            # It has expired, even if no sweep has removed it yet.
            return
        if consumer.count_ahead() + consumer.waiting > room:
            self._warn_that_it_is_late(consumer)
            return
        if found := self._owner.delivery(consumer, PullRequest(batch=room, max_bytes=_MOST_BYTES), now).run():
            self._late.discard(consumer.id)
            self._bus.deliver(consumer.config.deliver_subject, incoming(found))
        consumer.flush()

    def _warn_that_it_is_late(self, consumer: ConsumerLog) -> None:
        if consumer.id in self._late:
            return
        self._late.add(consumer.id)
        stream, name = consumer.log.name, consumer.name
        _log.warning(
            "push consumer %s/%s is %d messages behind: it does not receive what is replaced until it has caught up",
            stream,
            name,
            consumer.ahead + consumer.waiting,
            extra={"stream": stream, "consumer": name},
        )


def incoming(delivered: list[Delivered]) -> list[Incoming]:
    """Return deliveries as messages for the subscribers of a deliver subject."""
    return [Incoming(one.subject, one.data, one.headers, "", one) for one in delivered]


_BITS: Final = 8 * 1_000_000_000


class ConsumedOrigin:
    """The consumer of ``origin`` that ``source`` names, which may not exist (yet)."""

    def __init__(
        self, owner: PushRegistry, bus: Bus, origin: StreamLog, consumer: SourceConsumer, now: Callable[[], int]
    ) -> None:
        self._owner = owner
        self._bus = bus
        self._origin = origin
        self._named = consumer
        self._now = now
        # Until when a rate limit holds back what follows.
        self._not_before = 0

    def _usable(self) -> ConsumerLog | None:
        found = self._owner.consumers.by_name.get((self._origin.name, self._named.name))
        if found is None or found.config.ack_policy != "flow_control":
            return None
        # As on the server, nothing arrives if it delivers to another subject.
        is_ours = found.config.deliver_subject == self._named.deliver_subject and not found.config.deliver_group
        return found if is_ours else None

    def _consumer(self) -> ConsumerLog | None:
        found = self._usable()
        return None if found is None else self._owner.use_consumer(found)

    def is_of(self, name: str) -> bool:
        return name == self._named.name and self._usable() is not None

    def problem(self, kind: Kind) -> ApiError | None:
        names = {"stream": self._origin.name, "consumer": self._named.name}
        found = self._owner.consumers.by_name.get((self._origin.name, self._named.name))
        if found is None:
            return api_error("JSConsumerNotFoundErr", **names)
        if found.config.ack_policy != "flow_control":
            return api_error(f"JS{kind}ConsumerRequiresAckFCErr", **names)
        return None

    # --- delivery

    def offer_again(self) -> None:
        consumer = self._consumer()
        if consumer is not None:
            consumer.offer_again(self._now())

    def take(self, most: int) -> Sequence[MessageRow]:
        consumer, log, now = self._consumer(), self._origin, self._now()
        if consumer is None or now < self._not_before:
            return ()
        if log.state.dirty:
            # As for live pushes: what is being written must not be written again below.
            log.state.save()
        rate = consumer.config.rate_limit_bps
        request = PullRequest(batch=1 if rate else most)
        found = self._owner.delivery(consumer, request, now).run()
        if found:
            # Who else subscribes to the deliver subject receives it, too.
            self._bus.deliver(consumer.config.deliver_subject, incoming(found))
        if rate and found:
            self._not_before = now + sum(map(_size, found)) * _BITS // rate
        return [_row(one) for one in found]

    def settle(self, sequences: Collection[int]) -> None:
        consumer = self._consumer()
        if consumer is not None and sequences:
            acks = [AckOp(seq=seq, consumer_seq=0, is_of_any=True) for seq in sequences]
            self._owner.settlement(consumer, self._now()).run(acks)

    def give_back(self, sequences: Collection[int]) -> None:
        consumer = self._consumer()
        if consumer is not None and sequences:
            values = [(consumer.id, seq) for seq in sequences]
            consumer.db.executemany("UPDATE pelton_deliveries SET due=0 WHERE consumer=? AND seq=?", values)
            consumer.due, consumer.dirty = 0, True

    # --- when, and how far

    def is_ready(self) -> bool:
        consumer, now = self._consumer(), self._now()
        return consumer is not None and now >= self._not_before and consumer.may_deliver(now)

    def next_due(self) -> int:
        consumer, now = self._consumer(), self._now()
        if consumer is None:
            return NEVER
        return self._not_before if now < self._not_before else consumer.next_due(now)

    def num_pending(self) -> int:
        consumer = self._consumer()
        return 0 if consumer is None else consumer.num_pending()


def _size(one: Delivered) -> int:
    return len(one.subject) + len(one.data) + len(one.headers or b"")


def _row(one: Delivered) -> MessageRow:
    checksum = row_checksum(one.seq, one.time_ns, one.subject, one.headers, one.data)
    return MessageRow(one.seq, one.time_ns, one.subject, one.headers, one.data, checksum)
