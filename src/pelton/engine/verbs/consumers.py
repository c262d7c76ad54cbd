"""The verbs on consumers, and those that control their delivery: pause, reset, unpin."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from pelton.api import (
    ConsumerBacklog,
    ConsumerBacklogs,
    ConsumerBacklogsReply,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerPause,
    ConsumerReset,
    ConsumerResetReply,
    ConsumerUnpin,
    ConsumerUnsettled,
    ConsumerUnsettledReply,
    CorruptConfigError,
    PauseReply,
    StreamConfig,
    Success,
    UnpinReply,
    Unsettled,
    UnsettledGroup,
    UnsettledGroups,
    UnsettledGroupsReply,
    api_error,
    parse_rfc3339,
    resolved_consumer,
    rfc3339,
)
from pelton.api.times import NEVER, ZERO_TIME, Duration
from pelton.consumers import (
    ConsumerLog,
    check_consumer,
    check_consumer_update,
    consumer_info,
    first_wanted,
    say_unpinned,
    start_cursor,
    unpin,
)
from pelton.consumers.rules import check_on_workqueue, check_pedantic, check_unique_on_workqueue, filters_of
from pelton.engine.pushes import subscriptions_of
from pelton.engine.session import (
    Session,
    advise_paused,
    consumers_moved,
    create_consumer,
    delete_consumers,
    sweep,
    update_consumer,
)
from pelton.storage import DamagedRowError, integer, integers
from pelton.streams import StreamLog


def create(session: Session, request: ConsumerCreate) -> ConsumerInfo:
    """Create a consumer, update it, or return the existing one if it is the same."""
    registry = session.registry
    sweep(session, session.now())
    log = registry.stream(request.stream_name)
    log.advance(session.now())
    if request.pedantic:
        check_pedantic(request.config, log.config.consumer_limits)
    config = _with_name(session, request.config, log)
    _check(session, log.config, config)
    existing = registry.consumers.by_name.get((log.name, config.name))
    if existing is not None:
        # Only CONSUMER.PAUSE changes the pause.
        config = msgspec.structs.replace(config, pause_until=existing.config.pause_until)
        return _again(session, request, registry.consumer(log.name, config.name), config)
    for (stream, name), error in registry.damaged.items():
        if stream == log.name and (name == config.name or log.config.retention == "workqueue"):
            # In a work queue, it is unknown which messages are the damaged one's.
            raise error
    if request.action == "update":
        raise api_error("JSConsumerDoesNotExist", stream=log.name, consumer=config.name)
    _check_beside_others(session, log, log.config, config)
    cursor = start_cursor(config, log, filters_of(config))
    return _info(session, create_consumer(session, log, config, cursor))


def check_new_consumer(session: Session, log: StreamLog, stream: StreamConfig, config: ConsumerConfig) -> None:
    """Raise ApiError or ConfigError if a stream with a configuration can have no such consumer, whoever brings it."""
    _check(session, stream, config)
    _check_beside_others(session, log, stream, config)


def _check(session: Session, stream: StreamConfig, config: ConsumerConfig) -> None:
    check_consumer(config, stream)
    session.registry.account.check_consumer(config.max_ack_pending, stream.name, config.name)


def _check_beside_others(session: Session, log: StreamLog, stream: StreamConfig, config: ConsumerConfig) -> None:
    if not config.direct:
        session.registry.account.check_consumers(stream, len(session.registry.listed_names(log)), config.name)
    if stream.retention == "workqueue":
        check_on_workqueue(config, [other.config for other in session.registry.listed_of(log)])


def _with_name(session: Session, config: ConsumerConfig, log: StreamLog) -> ConsumerConfig:
    if not config.name and not config.durable_name:
        config = msgspec.structs.replace(config, name=session.new_id())
    return resolved_consumer(config, session.registry.account.consumer_limits(log.config.consumer_limits))


def _again(session: Session, request: ConsumerCreate, existing: ConsumerLog, config: ConsumerConfig) -> ConsumerInfo:
    # Only CONSUMER.PAUSE pauses or resumes a consumer; an update does neither.
    config = msgspec.structs.replace(config, pause_until=existing.config.pause_until)
    # On a server, an ephemeral consumer has a threshold, so a request without one differs from it.
    unnamed = not config.durable_name and not request.config.inactive_threshold
    if existing.config == config and not (request.action == "create" and unnamed):
        return _info(session, existing)
    log = existing.log
    if request.action == "create":
        raise api_error("JSConsumerAlreadyExists", stream=log.name, consumer=config.name)
    check_consumer_update(existing.config, config)
    if existing.config.deliver_subject != config.deliver_subject and _is_bound(session, existing):
        raise api_error("JSConsumerNameExistErr", stream=log.name, consumer=config.name)
    if log.config.retention == "workqueue":
        others = [other.config for other in session.registry.listed_of(log) if other is not existing]
        check_unique_on_workqueue(config, others)
    return _info(session, update_consumer(session, existing, config))


def _info(session: Session, consumer: ConsumerLog) -> ConsumerInfo:
    bound = _is_bound(session, consumer)
    return consumer_info(consumer, session.waiting_pulls(consumer), session.now(), push_bound=bound)


def _is_bound(session: Session, consumer: ConsumerLog) -> bool:
    """Whether somebody receives what a push consumer delivers: a subscriber, or a stream."""
    is_consumed = session.registry.source_graph.is_consumed(consumer.log, consumer.name)
    return is_consumed or bool(subscriptions_of(session, consumer))


def info_of(session: Session, stream: str, name: str) -> ConsumerInfo:
    return _info(session, session.registry.consumer(stream, name))


def info(session: Session, request: ConsumerInfoRequest) -> ConsumerInfo:
    sweep(session, session.now())
    consumer = session.registry.consumer(request.stream, request.name)
    if not session.db.is_read_only:
        consumer.log.advance(session.now())
    elif _is_gone(session, consumer):
        raise api_error("JSConsumerNotFoundErr", stream=request.stream, consumer=request.name)
    return _info(session, consumer)


def _is_gone(session: Session, consumer: ConsumerLog) -> bool:
    """Whether a consumer was inactive for too long, and is still there because the store is only read."""
    if not session.db.is_read_only or not consumer.config.inactive_threshold.ns:
        return False
    return session.registry.use_consumer(consumer).is_idle(session.now())


def names_of(session: Session, stream: str) -> list[str]:
    log = session.registry.stream(stream)
    sweep(session, session.now())
    gone = session.registry.idle_names(log, session.now()) if session.db.is_read_only else set()
    return sorted(name for name in session.registry.listed_names(log) if name not in gone)


_AT_ONCE: Final = 256


def backlogs(session: Session, request: ConsumerBacklogs) -> ConsumerBacklogsReply:
    """Return the backlogs of the consumers of some streams, by name; what is damaged is left out."""
    registry = session.registry
    found, last_seqs, last = list[ConsumerBacklog](), dict[str, int](), ""
    for name in sorted(name for name in registry.streams.rows if name > request.after):
        if len(found) >= _AT_ONCE:
            return ConsumerBacklogsReply(backlogs=tuple(found), last_seqs=last_seqs, after=last)
        last = name
        with suppress(CorruptConfigError, DamagedRowError):
            if not registry.consumers.rows_of(name) or _is_filled_by_pelton(log := registry.stream(name)):
                continue
            if log.config.retention != "limits":
                last_seqs[name] = log.state.last
            for consumer in map(registry.use_consumer, registry.listed_of(log)):
                found.append(ConsumerBacklog(name, consumer.name, consumer.num_pending(), consumer.unsettled))
    return ConsumerBacklogsReply(backlogs=tuple(found), last_seqs=last_seqs)


def _is_filled_by_pelton(log: StreamLog) -> bool:
    return any(subject.startswith("$") for subject in log.config.subjects)


def delete(session: Session, request: ConsumerDelete) -> Success:
    """Delete a consumer; its unacknowledged messages stay in the stream."""
    delete_consumers(session, [session.registry.consumer(request.stream, request.name)])
    return Success()


_CAUSES: Final = "SELECT DISTINCT waits FROM pending WHERE consumer=?"
_GROUPS: Final = (
    "SELECT waits-1, due<=?, count(*), min(seq), min(due) FROM pending WHERE consumer=? AND waits>0 "
    "GROUP BY waits, due<=?"
)
_OF_CAUSE: Final = (
    "SELECT count(*), min(seq), min(due), max(due) FROM pending WHERE consumer=? AND waits=? AND due BETWEEN ? AND ?"
)
_TAKEN: Final = "SELECT seq, n, due FROM pending WHERE consumer=? AND waits=0"
_FEW_CAUSES: Final = 3
_LAST: Final = 1 << 62
_ANY: Final = (-1, _LAST)


def list_unsettled(session: Session, request: ConsumerUnsettled) -> ConsumerUnsettledReply:
    """Return the messages that were delivered and not settled."""
    consumer = session.registry.consumer(request.stream, request.name)
    sign, order = ("<", " DESC") if request.descending else (">", "")
    low, high = request.causes or _ANY
    due, seq = request.after or ((_LAST, _LAST) if request.descending else (0, 0))
    at: tuple[int, ...] = ()
    if request.sequences:
        where, by = f"seq IN ({', '.join(map(str, map(int, request.sequences)))})", ""
    elif request.by_due:
        where, at, by = f"(due, seq) {sign} (?, ?)", (due, seq), f"due{order}, "
    else:
        where, at, by = f"seq {sign} ?", (seq,), ""
    sql = (
        "SELECT seq, n, due, waits FROM pending WHERE consumer=? AND waits BETWEEN ? AND ? AND due>? AND due<=? "
        f"AND {where} ORDER BY {by}seq{order} LIMIT ?+0 OFFSET ?"
    )
    times = (request.due_after or -1, request.due_upto or _LAST)
    bindings = (consumer.id, low + 1, high + 1, *times, *at, request.limit, request.offset)
    rows = consumer.db.execute(sql, bindings).fetchall()
    return ConsumerUnsettledReply(
        total=consumer.unsettled,
        offset=request.offset,
        limit=request.limit,
        messages=tuple(
            Unsettled(integer(seq), integer(n), integer(due), bool(waits), max(integer(waits) - 1, 0))
            for seq, n, due, waits in rows
        ),
    )


def group_unsettled(session: Session, request: UnsettledGroups) -> UnsettledGroupsReply:
    """Return how many messages were given back, by cause, and those that were not."""
    consumer, now = session.registry.consumer(request.stream, request.name), session.now()
    causes = {integer(cause) for (cause,) in consumer.db.execute(_CAUSES, (consumer.id,)).fetchall()}
    taken = consumer.db.execute(_TAKEN, (consumer.id,)).fetchall() if 0 in causes else ()
    return UnsettledGroupsReply(
        taken=tuple(Unsettled(integer(seq), integer(n), integer(due), False) for seq, n, due in taken),
        groups=tuple(_given_back(consumer, sorted(causes - {0}), now)),
        passed=_passed(consumer),
    )


def _given_back(consumer: ConsumerLog, causes: Sequence[int], now: int) -> list[UnsettledGroup]:
    run = consumer.db.execute
    if len(causes) > _FEW_CAUSES:
        return [
            UnsettledGroup(integer(cause), bool(is_due), integer(number), integer(seq), integer(due))
            for cause, is_due, number, seq, due in run(_GROUPS, (now, consumer.id, now)).fetchall()
        ]
    # Very many are read again for each of few causes at less cost than they are sorted into groups.
    found, spans = list[UnsettledGroup](), [(waits, 0, NEVER) for waits in causes]
    while spans:
        waits, first, last = spans.pop(0)
        ((*numbers,),) = run(_OF_CAUSE, (consumer.id, waits, first, last)).fetchall()
        number, seq, due, last_due = integers(numbers)
        if due <= now < last_due:
            spans = [(waits, now + 1, NEVER), (waits, 0, now), *spans]
        else:
            found.append(UnsettledGroup(waits - 1, last_due <= now, number, seq, due))
    return found


def _passed(consumer: ConsumerLog) -> int:
    """Return up to where a consumer has delivered all that it wants; 0 if some of that may wait behind its cursor."""
    if not consumer.num_pending():
        return consumer.log.state.last
    return 0 if consumer.per_subject or consumer.waiting else consumer.cursor


# --- the verbs that control a consumer's delivery: pause, reset, unpin


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
    session.registry.load_interest(consumer.log)
    consumers_moved(session, [consumer.log], [consumer.id])
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
