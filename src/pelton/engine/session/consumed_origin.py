"""A source takes what a durable consumer delivers (ADR-60), in the transaction that makes it deliverable.

On a NATS server, the stream with the source subscribes to the consumer's deliver subject, stores what arrives, and
acknowledges it by flow control. Here it is delivered, stored and settled in one transaction, with the consumer's own
rules: its filters, its start, its pace and its pauses. The consumer shows the progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from pelton.api import AckOp, ApiError, Delivered, PullRequest, SourceConsumer, api_error
from pelton.consumers import NEVER, ConsumerLog
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session.consumers import PushRegistry, incoming
from pelton.sourcing.link import Kind
from pelton.storage import MessageRow
from pelton.storage.rows import row_checksum
from pelton.streams import StreamLog

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
            consumer.db.executemany("UPDATE pending SET due=0 WHERE consumer=? AND seq=?", values)
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
