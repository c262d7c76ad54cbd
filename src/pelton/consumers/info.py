"""The info of a consumer."""

from __future__ import annotations

from pelton.api import ConsumerInfo, PriorityGroupState, SequenceInfo, rfc3339
from pelton.api.times import Duration
from pelton.consumers.log import ConsumerLog
from pelton.storage import integer, text


def consumer_info(consumer: ConsumerLog, waiting_pulls: int, now: int, *, push_bound: bool) -> ConsumerInfo:
    """Return the info of a consumer whose state is fresh; runs inside a transaction or snapshot."""
    # First, because this also forgets the messages that were removed.
    ahead = consumer.num_pending()
    sql = "SELECT min(seq), min(dseq), ifnull(sum(n > 1), 0) FROM pending WHERE consumer=?"
    row = consumer.db.execute(sql, (consumer.id,)).fetchone()
    assert row is not None
    least_seq, least_dseq, redelivered = (None if value is None else integer(value) for value in row)
    if consumer.waiting:
        # A message that became ready behind a later delivery is not settled either; a parked one comes after these.
        ready = consumer.db.value("SELECT min(seq) FROM ready WHERE consumer=?", (consumer.id,))
        least_seq = min((seq for seq in (least_seq, ready) if seq is not None), default=None)
    floor_seq = consumer.delivered if least_seq is None else min(least_seq - 1, consumer.delivered)
    floor_dseq = consumer.dseq if least_dseq is None else least_dseq - 1
    return ConsumerInfo(
        stream_name=consumer.log.name,
        name=consumer.name,
        created=rfc3339(consumer.created),
        config=consumer.config,
        # Before the first delivery, it is when the consumer was made.
        delivered=_position(consumer.dseq, consumer.delivered, consumer.last_active if consumer.dseq else 0),
        ack_floor=_position(floor_dseq, floor_seq, consumer.last_ack),
        num_ack_pending=consumer.unsettled,
        num_redelivered=redelivered or 0,
        num_waiting=waiting_pulls,
        num_pending=ahead,
        push_bound=push_bound,
        paused=now < consumer.paused_until,
        pause_remaining=Duration.of_ns(max(consumer.paused_until - now, 0)),
        priority_groups=[_group(consumer, group, now) for group in consumer.config.priority_groups],
        ts=rfc3339(now),
    )


def _group(consumer: ConsumerLog, group: str, now: int) -> PriorityGroupState:
    sql = "SELECT pin, since FROM pins WHERE consumer=? AND grp=? AND seen>?"
    row = consumer.db.execute(sql, (consumer.id, group, now - consumer.config.priority_timeout.ns)).fetchone()
    pin, since = row or ("", 0)
    if not pin:
        return PriorityGroupState(group=group)
    return PriorityGroupState(group=group, pinned_client_id=text(pin), pinned_ts=rfc3339(integer(since)))


def _position(consumer_seq: int, stream_seq: int, last_active: int) -> SequenceInfo:
    return SequenceInfo(
        consumer_seq=consumer_seq,
        stream_seq=stream_seq,
        last_active=rfc3339(last_active) if last_active else "",
    )
