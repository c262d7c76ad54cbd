"""Reads what an archive of a stream holds: its consumers, in a transaction; its messages, on another thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from pelton.api import ConsumerConfig
from pelton.api.archives import (
    ArchivedConsumer,
    ArchivedConsumerState,
    ArchivedDelivery,
    ArchivedMessage,
    ArchivedPosition,
)
from pelton.api.keys import Key
from pelton.consumers import ConsumerLog, consumer_info
from pelton.engine.bulk import BulkReader
from pelton.engine.session import Session
from pelton.storage import Portion, integers


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
