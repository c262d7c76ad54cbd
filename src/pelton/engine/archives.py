"""Streams as archives: what one holds is read, and a store is built from one, from which it is restored.

**Builds a store of its own from an archive of a stream, from which it is restored like from any backup.** An archive
comes from elsewhere, and may be wrong or cut off. So it becomes a new file, on a thread; only if all of it was valid,
its stream is copied into the store that is in use, in one transaction. Nobody sees half of a stream.

Messages are stored as they were, under their sequences and with their times; headers have had their effects. Then the
stream gets its real limits, which may be smaller than those of the stream that was archived. A source continues after
the last message that the stream has of it, if its origin is there.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import escape, iglob
from itertools import accumulate, pairwise
from typing import IO, Final, NamedTuple, Protocol

import msgspec

from pelton.api import (
    AccountLimits,
    ApiError,
    ConfigError,
    ConsumerConfig,
    ConsumerCreate,
    PeltonError,
    StreamConfig,
    api_error,
    headers,
    parse_rfc3339,
    resolved_consumer,
)
from pelton.api.admission import check_request
from pelton.api.backend import Progress, StrPath
from pelton.api.codec import (
    ArchivedConsumer,
    ArchivedConsumerState,
    ArchivedDelivery,
    ArchivedMessage,
    ArchivedPosition,
)
from pelton.api.events import Event, StreamAction
from pelton.api.keys import Key
from pelton.api.schedule import first_due
from pelton.consumers import NEVER, ConsumerLog, consumer_info
from pelton.engine.bulk import BulkReader
from pelton.engine.bus import Bus, NoPeers
from pelton.engine.connections import Connections
from pelton.engine.host import Host
from pelton.engine.session import Session, Surroundings, create_consumer, create_stream, update_stream
from pelton.engine.session.catalogue import most_bytes
from pelton.engine.upkeep import public_faults
from pelton.engine.verbs import streams
from pelton.engine.verbs.consumers import check_new_consumer
from pelton.runtime import Clock, Halt, on_thread
from pelton.sourcing.link import Position
from pelton.sourcing.plan import key_of
from pelton.storage import Database, MessageRow, integers
from pelton.storage.bulk import Portion
from pelton.storage.messages import row_checksum
from pelton.streams import StreamLog
from pelton.streams.publish_checks import expiry, schedule_of, seconds_of
from pelton.streams.timers import Firing
from pelton.subjects import is_subject


def archived_consumers(session: Session, stream: str, last: int) -> list[ArchivedConsumer]:
    """Return the consumers of a stream, as if it ended with the message ``last``."""
    log, now = session.registry.stream(stream), session.now()
    consumers = (session.registry.use_consumer(each) for each in session.registry.listed_of(log))
    return [_archived(each, last, now) for each in consumers if not each.is_idle(now)]


def _archived(consumer: ConsumerLog, last: int, now: int) -> ArchivedConsumer:
    info = consumer_info(consumer, 0, now, push_bound=False)
    delivered, floor = info.delivered, info.ack_floor
    pending: dict[int, ArchivedDelivery] = {}
    redelivered: dict[int, int] = {}
    if consumer.waiting or consumer.per_subject:
        # No archive says which messages were passed over: those above the floor are delivered again.
        delivered = floor
    else:
        sql = "SELECT seq, dseq, n, due FROM pending WHERE consumer=? AND seq<=? ORDER BY seq"
        for row in consumer.db.execute(sql, (consumer.id, last)).fetchall():
            seq, dseq, count, due = integers(row)
            pending[seq] = ArchivedDelivery(sequence=dseq, timestamp=due - ack_wait(consumer.config, count))
            if count > 1:
                redelivered[seq] = count - 1
    state = ArchivedConsumerState(
        delivered=ArchivedPosition(consumer_seq=delivered.consumer_seq, stream_seq=min(delivered.stream_seq, last)),
        ack_floor=ArchivedPosition(consumer_seq=floor.consumer_seq, stream_seq=min(floor.stream_seq, last)),
        pending=pending or None,
        redelivered=redelivered or None,
    )
    return ArchivedConsumer(config=consumer.config, state=state)


def ack_wait(config: ConsumerConfig, deliveries: int) -> int:
    """Return for how long a message that was delivered so often awaits its ack, in nanoseconds."""
    steps = config.backoff
    return steps[min(deliveries, len(steps)) - 1].ns if steps else config.ack_wait.ns


class ArchiveReader:
    """Reads the messages ``first`` to ``last`` of a stream, portion by portion; blocks. For one thread at a time.

    Raises StreamNotFoundError if it was deleted, CorruptMessageError.
    """

    def __init__(self, path: str, key: Key | None, stream: str, created: str, first: int, last: int) -> None:
        self._reader = BulkReader(path, stream, created, key=key)
        self._next = first
        self._last = last

    def read(self) -> list[ArchivedMessage] | None:
        """Return the next messages; None after the last ones."""
        if self._next > self._last:
            return None
        portion = self._reader.read(self._next, self._last)
        if portion.damaged:
            raise self._reader.corrupt(portion.damaged[0])
        self._next = portion.after + 1
        return list(_messages(portion))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._reader.close()


def _messages(portion: Portion) -> Iterator[ArchivedMessage]:
    seqs, times = memoryview(portion.seqs).cast("q"), memoryview(portion.times).cast("q")
    subjects, payloads = portion.subjects, portion.payloads
    names = _spans(portion.subject_lengths)
    bodies = _spans(portion.payload_lengths)
    for seq, ts, hdr, (a, b), (c, d) in zip(seqs, times, portion.headers, names, bodies, strict=True):
        yield ArchivedMessage(seq, ts, subjects[a:b].decode(), hdr, payloads[c:d])


def _spans(lengths: bytes) -> list[tuple[int, int]]:
    ends = list(accumulate(memoryview(lengths).cast("i"), initial=0))
    return list(pairwise(ends))


_SOURCE_WORDS: Final = 4
# Larger than any sequence, count or time of a server, and small enough to be added to.
_NUMBERS: Final = range(1 << 62)


class ArchivedStream(NamedTuple):
    """A stream to build: its real configuration, the sequences it begins and ends with, and what it holds.

    ``messages`` come in portions; reading them may raise ApiError. ``origins`` are the creation times of the streams
    it may continue to source, by their names. ``limits`` are the account's.
    """

    config: StreamConfig
    first: int
    last: int
    consumers: Iterable[ArchivedConsumer]
    messages: Iterable[Sequence[ArchivedMessage]]
    origins: Mapping[str, str]
    limits: AccountLimits


def build_store(path: str, key: bytes | None, archive: ArchivedStream, now: int, halt: Halt) -> int:
    """Write the new store ``path``; return the bytes that its stream accounts for. Blocks.

    Raises ApiError 10062, or whatever reading the archive raises.
    """
    database = Database(path, key=key)
    try:
        # If this process dies, the file is of no use.
        database.execute("PRAGMA synchronous=OFF")
        session = Session(
            database,
            Bus(database, NoPeers(), lambda members: members[0]),
            Surroundings(lambda: now, lambda below: 0, str, lambda: False, lambda consumer: 0, archive.limits),
        )
        with database.writing():
            session.refresh()
            size = _Building(session, archive, now, halt).run()
            session.flush()
        return size
    finally:
        database.close()


class _Building:
    def __init__(self, session: Session, archive: ArchivedStream, now: int, halt: Halt) -> None:
        self._session = session
        self._archive = archive
        self._now = now
        self._halt = halt
        self._most = most_bytes(archive.limits, archive.config.storage)
        self._schedules: dict[str, tuple[int, bytes]] = {}
        self._sourced: dict[str, int] = {}

    def run(self) -> int:
        """Write everything; return the bytes that the stream accounts for."""
        session, config = self._session, self._archive.config
        for name, created in self._archive.origins.items():
            origin = create_stream(session, StreamConfig(name=name))
            session.db.execute("UPDATE streams SET created=? WHERE id=?", (parse_rfc3339(created), origin.id))
        log = create_stream(session, _bare(config))
        self._store(log)
        for each in self._archive.consumers:
            self._halt.check()
            self._restore_consumer(log, each)
        self._place_sources(log)
        log = update_stream(session, log, config)
        log.appender.apply_limits()
        log.appender.flush()
        return log.state.bytes

    def _store(self, log: StreamLog) -> None:
        first, last = self._archive.first, self._archive.last
        if first not in _NUMBERS or last + 1 not in _NUMBERS or last < first - 1:
            raise self.invalid("its sequences make no sense")
        log.copier.skip_to(first)
        for portion in self._archive.messages:
            self._halt.check()
            rows = [self._row(message) for message in portion]
            if rows:
                self._check_order(log, rows, first, last)
                log.copier.append_rows(rows)
                log.state.write_rows()
                if 0 <= self._most < log.state.bytes:
                    raise api_error("JSAccountResourcesExceededErr", stream=log.name)
                for row in rows:
                    self._remember(log, row)
        # Without messages it begins where it is to begin, unless it was there already.
        log.copier.skip_to(last + 1 if log.state.msgs else max(last + 1, self._archive.config.first_seq))
        for subject, (seq, hdr) in self._schedules.items():
            self._put_schedule(log, subject, seq, hdr)
        log.appender.flush()

    def invalid(self, why: str) -> ApiError:
        return api_error("JSStreamRestoreErrF", stream=self._archive.config.name, err=why)

    def _row(self, message: ArchivedMessage) -> MessageRow:
        seq, ts, subject, hdr, data = message
        largest = self._archive.config.max_msg_size
        if not is_subject(subject):
            raise self.invalid(f"message {seq} has an invalid subject")
        if 0 <= largest < len(data) + len(hdr or b""):
            raise self.invalid(f"message {seq} is larger than the stream allows")
        return MessageRow(seq, ts, subject, hdr, data, row_checksum(seq, ts, subject, hdr, data))

    def _check_order(self, log: StreamLog, rows: Sequence[MessageRow], first: int, last: int) -> None:
        sequences = [log.state.last, *(row.seq for row in rows)]
        if any(one >= two for one, two in pairwise(sequences)):
            raise self.invalid("its messages are not in order")
        if sequences[1] < first or sequences[-1] > last:
            raise self.invalid("a message is outside of the sequences that it names")

    # --- what headers stand for

    def _remember(self, log: StreamLog, row: MessageRow) -> None:
        config, hdr = self._archive.config, row.hdr
        if config.allow_msg_schedules:
            self._schedules.pop(row.subject, None)
        if hdr is None or b"Nats-" not in hdr:
            return
        life = headers.first_value(hdr, headers.TTL) if config.allow_msg_ttl else None
        if life:
            self._put_deadline(log, row, life)
        if config.allow_msg_schedules and headers.first_value(hdr, headers.SCHEDULE):
            self._schedules[row.subject] = (row.seq, hdr)
        window = config.duplicate_window.ns
        msg_id = headers.first_value(hdr, headers.MSG_ID) if row.ts > self._now - window else None
        if msg_id:
            log.state.ids.add(row.seq, row.ts, msg_id)
        words = (headers.first_value(hdr, headers.STREAM_SOURCE) or "").split(" ")
        if len(words) >= _SOURCE_WORDS and words[1].isdecimal():
            self._sourced[f"{words[0]} {words[2]} {words[3]}"] = int(words[1])

    def _put_deadline(self, log: StreamLog, row: MessageRow, life: str) -> None:
        try:
            log.state.timers.add(row.seq, expiry(seconds_of(life), row.ts))
        except ValueError:
            raise self.invalid(f"message {row.seq} has an invalid TTL") from None

    def _put_schedule(self, log: StreamLog, subject: str, seq: int, hdr: bytes) -> None:
        try:
            due = first_due(schedule_of(hdr), self._now)
        except (ApiError, ValueError):
            # It has fired for the last time, or never does.
            return
        log.state.timers.put(Firing(seq, subject, due))

    def _place_sources(self, log: StreamLog) -> None:
        """Let sources continue after what the stream has of them."""
        config, registry = self._archive.config, self._session.registry
        for source in (*config.sources, *((config.mirror,) if config.mirror is not None else ())):
            there, key = registry.streams.get(source.name), key_of(source)
            # When one that is elsewhere was made is not known.
            origin = 0 if source.external is not None else None if there is None else there.id
            reached = self._archive.last if config.mirror is not None else self._sourced.get(key, 0)
            if origin is not None and reached:
                Position(self._session.db, log.id, key).begin(origin, reached)

    def _restore_consumer(self, log: StreamLog, archived: ArchivedConsumer) -> None:
        config, state, session = resolved_consumer(archived.config), archived.state, self._session
        check_request(ConsumerCreate(stream_name=log.name, config=config))
        if (log.name, config.name) in session.registry.consumers.by_name:
            raise self.invalid(f"it has consumer {config.name!r} twice")
        check_new_consumer(session, log, self._archive.config, config)
        if not all(number in _NUMBERS for number in _numbers_of(archived.state)):
            raise self.invalid(f"the state of consumer {config.name!r} makes no sense")
        consumer = create_consumer(session, log, config, state.delivered.stream_seq)
        db = session.db
        for table in ("ready", "claims"):
            db.execute(f"DELETE FROM {table} WHERE consumer=?", (consumer.id,))
        rows = _pending_rows(consumer, archived)
        db.executemany("INSERT INTO pelton_deliveries VALUES(?, ?, ?, ?, ?, NULL, 0)", rows)
        consumer.waiting = 0
        consumer.unsettled = len(rows)
        consumer.dseq = max([state.delivered.consumer_seq, *(row[2] for row in rows)])
        consumer.delivered = consumer.cursor = max([state.delivered.stream_seq, *(row[1] for row in rows)])
        consumer.due = min([consumer.due, *(row[4] for row in rows)])
        consumer.dirty = True
        consumer.flush()


def _bare(config: StreamConfig) -> StreamConfig:
    """Return a configuration under which rows are stored as they are."""
    return StreamConfig(
        name=config.name,
        storage=config.storage,
        compression=config.compression,
        allow_msg_ttl=config.allow_msg_ttl,
        allow_msg_schedules=config.allow_msg_schedules,
        duplicate_window=config.duplicate_window,
    )


def _numbers_of(state: ArchivedConsumerState) -> Iterator[int]:
    """Yield all sequences, counts and times."""
    yield from msgspec.structs.astuple(state.delivered) + msgspec.structs.astuple(state.ack_floor)
    for seq, delivery in (state.pending or {}).items():
        yield from (seq, delivery.sequence, abs(delivery.timestamp))
    for seq, count in (state.redelivered or {}).items():
        yield from (seq, count)


def _pending_rows(consumer: ConsumerLog, archived: ArchivedConsumer) -> list[tuple[int, int, int, int, int]]:
    """Return the rows of deliveries that await their acks, of messages that are still there."""
    pending, redelivered = archived.state.pending or {}, archived.state.redelivered or {}
    there = consumer.log.table.subjects_at(sorted(pending))
    rows, numbers = [], set()
    for seq, delivery in sorted(pending.items()):
        if seq in there and delivery.sequence not in numbers:
            numbers.add(delivery.sequence)
            count = redelivered.get(seq, 0) + 1
            due = min(delivery.timestamp + ack_wait(consumer.config, count), NEVER)
            rows.append((consumer.id, seq, delivery.sequence, count, due))
    return rows


# --- archives of the streams of an open store, for a server: what one holds, and restoring one

_ARCHIVE: Final = "archive"
# How many are built at once: each takes a thread, and as much of the processor as it gets.
_BUILT_AT_ONCE: Final = 2


class RestoreFolder:
    """A folder beside a store for what a restore writes, and the file in it for the archive. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkdir(path, 0o700)
        self.archive: IO[bytes] = open(os.path.join(path, _ARCHIVE), "w+b")  # noqa: SIM115  # remove() closes it
        fcntl.flock(self.archive, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        self.archive.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_abandoned(prefix: str) -> None:
    """Remove the folders of processes that have ended in the middle of a restore: no one holds their archives."""
    for path in iglob(f"{escape(prefix)}*"):
        with suppress(OSError), open(os.path.join(path, _ARCHIVE), "rb") as archive:
            fcntl.flock(archive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


class RestoringStore(Protocol):
    """The store that a backup is restored into."""

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> object: ...


class StreamArchives:
    """The archives of one store."""

    def __init__(self, host: Host, connections: Connections, store: RestoringStore, clock: Clock) -> None:
        self._host = host
        self._connections = connections
        self._store = store
        self._clock = clock
        self._building = asyncio.Semaphore(_BUILT_AT_ONCE)

    async def consumers(self, stream: str, last: int) -> list[ArchivedConsumer]:
        """Return the consumers of a stream, as if it ended with the message ``last``."""
        session = self._host.session
        found: list[ArchivedConsumer] = await self._host.stage(
            lambda: archived_consumers(session, stream, last), durable=False
        )
        return found

    def reader(self, stream: str, created: str, first: int, last: int) -> ArchiveReader:
        """Return a reader of messages. Raises ConfigError for a store in memory, StreamNotFoundError."""
        with self._connections.unchanged() as settings:
            if settings.memory:
                raise ConfigError("a store in memory has no archives: serve a file")
            return ArchiveReader(settings.path, settings.key, stream, created, first, last)

    async def advise(self, event: Event) -> None:
        """Send an advisory."""
        await self._host.stage(lambda: self._host.session.advise(event), durable=False)

    # --- restoring

    async def check(self, config: StreamConfig) -> StreamConfig:
        """Return the resolved configuration of a stream that is to be restored. Raises PeltonError if it cannot be."""
        session = self._host.session
        found: StreamConfig = await self._host.stage(lambda: streams.checked_restore(session, config), durable=False)
        return found

    @property
    def limits(self) -> AccountLimits:
        return self._host.session.registry.account.limits

    def free_bytes(self) -> int:
        """Return how much room the disk of the store has. Raises OSError."""
        return shutil.disk_usage(os.path.dirname(self._connections.settings.path) or ".").free

    def new_folder(self, name: str) -> RestoreFolder:
        """Make a folder for what a restore writes; remove those of killed processes. Raises ConfigError, OSError."""
        settings = self._connections.settings
        if settings.memory:
            raise ConfigError("a store in memory cannot restore archives: serve a file")
        prefix = f"{settings.path}-restore-"
        remove_abandoned(prefix)
        return RestoreFolder(prefix + name)

    async def restore(
        self, config: StreamConfig, folder: RestoreFolder, read: Callable[[Mapping[str, str], Halt], ArchivedStream]
    ) -> None:
        """Restore a stream with a resolved configuration, all or nothing.

        ``read`` is called on a thread, with the creation times of the streams that it sources. Raises PeltonError.
        """
        host, now = self._host, self._host.session.now()
        origins = await host.stage(lambda: streams.origins_of(host.session, config), durable=False)
        with self._connections.unchanged() as settings:
            key = settings.key
        scratch = os.path.join(folder.path, "store")

        def build(halt: Halt) -> int:
            try:
                with public_faults():
                    return build_store(scratch, key, read(origins, halt), now, halt)
            except PeltonError:
                raise
            except (OverflowError, ValueError) as error:
                # A number that is out of bounds in a header or a state, which no one has looked at before.
                raise api_error("JSStreamRestoreErrF", stream=config.name, err=error) from None

        def check_again() -> None:
            # Other streams may have been created meanwhile.
            streams.checked_restore(host.session, config)
            host.session.registry.account.check_quota(config.storage, size)

        async with self._building:
            size = await on_thread(build)
        await host.stage(check_again, durable=False)
        await self._store.restore(scratch, [config.name], {}, key, None)
        await self.advise(StreamAction(stream=config.name, action="create"))
