"""The verbs that control a consumer's delivery: pause, reset, unpin."""

from __future__ import annotations

import msgspec

from pelton.api import (
    ConsumerPause,
    ConsumerReset,
    ConsumerResetReply,
    ConsumerUnpin,
    PauseReply,
    UnpinReply,
    api_error,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.durations import Duration
from pelton.api.times import ZERO_TIME
from pelton.consumers import ConsumerLog, first_wanted, say_unpinned, unpin
from pelton.engine.session import Session, advise_paused, update_consumer
from pelton.engine.verbs.consumers import info_of


def pause(session: Session, request: ConsumerPause) -> PauseReply:
    """Pause a consumer until a time, or resume it."""
    consumer = session.registry.consumer(request.stream, request.name)
    until = max(parse_rfc3339(request.pause_until), 0) if request.pause_until else 0
    config = msgspec.structs.replace(consumer.config, pause_until=rfc3339(until) if until else "")
    was_paused = consumer.paused_until > 0
    consumer = update_consumer(session, consumer, config)
    if was_paused or until:
        advise_paused(session, consumer)
    left = Duration.of_ns(max(until - session.now(), 0))
    return PauseReply(paused=bool(left), pause_until=rfc3339(until) if until else ZERO_TIME, pause_remaining=left)


def reset(session: Session, request: ConsumerReset) -> ConsumerResetReply:
    """Forget what a consumer has delivered; continue from a sequence, or after the ack floor."""
    consumer = session.registry.consumer(request.stream, request.name)
    if request.seq:
        _check_reset(consumer, request.seq)
    seq = request.seq or info_of(session, request.stream, request.name).ack_floor.stream_seq + 1
    first = first_wanted(consumer)
    consumer.restart(seq)
    session.registry.consumers.number_again(consumer)
    # Every process must load its token floor, and learn which messages are kept for it.
    consumer.flush()
    session.registry.reload()
    session.registry.source_graph.consumers_changed(consumer.log)
    session.registry.tidy(consumer.log, first)
    info = info_of(session, request.stream, request.name)
    fields = {name: getattr(info, name) for name in info.__struct_fields__}
    return ConsumerResetReply(**fields, reset_seq=seq)


def unpin_group(session: Session, request: ConsumerUnpin) -> UnpinReply:
    """Unpin the pinned client of a group (ADR-42)."""
    if not request.group:
        raise api_error("JSInvalidJSONErr", stream=request.stream, err="consumer group not specified")
    consumer = session.registry.consumer(request.stream, request.name)
    if request.group not in consumer.config.priority_groups:
        raise api_error("JSConsumerInvalidPriorityGroupErr", stream=request.stream, consumer=request.name)
    unpin(consumer, request.group)
    say_unpinned(consumer, request.group, "admin")
    return UnpinReply()


def _check_reset(consumer: ConsumerLog, seq: int) -> None:
    """Refuse a sequence that the consumer would never have delivered."""
    config = consumer.config
    reason = ""
    if config.deliver_policy in ("new", "last", "last_per_subject"):
        reason = "not allowed"
    elif config.deliver_policy == "by_start_sequence" and seq < config.opt_start_seq:
        reason = "below start seq"
    elif config.deliver_policy == "by_start_time":
        row = consumer.log.reader.next_row_of(seq, "")
        if row is not None and row.ts < parse_rfc3339(config.opt_start_time):
            reason = "below start time"
    if reason:
        raise api_error("JSConsumerInvalidResetErr", stream=consumer.log.name, consumer=config.name, err=reason)
