"""Where the two sides differ on purpose: all of it, with reasons. Everything not listed here has to be equal.

Some differences are left out of the comparison (`plain`, `refusal`); if one would make everything after it differ,
the step is left out on both sides (`avoided`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from pelton import api
from pelton.engine import Engine
from pelton.subjects import is_subset
from tests.differential import steps
from tests.differential.pools import MALFORMED_LIVES
from tests.differential.steps import Side
from tests.differential.steps_consumers import Ack, CreateConsumer, Fetch, Reset
from tests.differential.steps_publish import Publish, PublishAtomic

# Times and identities: no two stores agree on them.
_TIMES = frozenset(
    {"ts", "created", "time", "time_ns", "first_ts", "last_ts", "last_active", "token", "pause_remaining", "pinned_ts"}
)
# A server reports every stream as created, even one that existed.
_UNTRUE = frozenset({"did_create"})
# Leaders and replicas: an embedded store has neither.
_ELSEWHERE = frozenset({"cluster"})
# Which of two codes reports a missing message depends on how a server's files are cut into blocks.
_SAME = {10043: 10057}
# The number of a delivery.
_NUMBERS = frozenset({"consumer_seq"})

# While acks are awaited, a server's floor stays behind gaps in the stream and the numbers of redeliveries.
_LAGGING = frozenset({"ack_floor"})

Renumbered = Collection[tuple[str, str]]


def plain(value: Any, renumbered: Renumbered = frozenset()) -> Any:
    """Return a reply as plain data without intended differences.

    ``renumbered`` are consumers that were reset: a server numbers their deliveries from 1 again, we continue, so that
    an ack of an earlier delivery never matches a later one.
    """
    if isinstance(value, api.StreamState) and not value.last_seq:
        # Never used: a server calls its sequence 0 deleted; after a purge it begins at 1 instead of 0.
        value = msgspec.structs.replace(value, num_deleted=0, deleted=[], first_seq=0)
    if isinstance(value, msgspec.Struct):
        left_out = _TIMES | _UNTRUE | _ELSEWHERE
        if isinstance(value, api.ConsumerInfo) and value.num_ack_pending:
            left_out |= _LAGGING
        if isinstance(value, api.PriorityGroupState):
            value = msgspec.structs.replace(value, pinned_client_id=value.pinned_client_id and "pin")
        if isinstance(value, api.Delivered) and value.headers:
            value = msgspec.structs.replace(value, headers=_block(value.headers))
        if isinstance(value, api.WireMessage | api.StoredMessage):
            value = msgspec.structs.replace(value, hdrs=_block(value.hdrs))
        if renumbered and _consumer_of(value) in renumbered:
            left_out |= _NUMBERS
            value = _without_numbers(value)
        if isinstance(value, api.StreamInfo) and value.config.name.startswith("T"):
            # Messages republished to it hold times, whose texts have different lengths.
            value = msgspec.structs.replace(value, state=msgspec.structs.replace(value.state, bytes=0))
        names = (name for name in value.__struct_fields__ if name not in left_out)
        return {name: plain(getattr(value, name), renumbered) for name in names}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not str(key).startswith("_nats.")}
    if isinstance(value, list | tuple):
        return [plain(item, renumbered) for item in value]
    return value


def _consumer_of(value: Any) -> tuple[str, str]:
    if isinstance(value, api.Delivered):
        return value.stream, value.consumer
    return getattr(value, "stream_name", ""), getattr(value, "name", "")


def _without_numbers(value: Any) -> Any:
    if isinstance(value, api.ConsumerInfo | api.ConsumerResetReply):
        positions = {"delivered": value.delivered, "ack_floor": value.ack_floor}
        changed = {name: msgspec.structs.replace(found, consumer_seq=0) for name, found in positions.items()}
        return msgspec.structs.replace(value, **changed)
    return value


def _block(found: bytes) -> bytes:
    """Return a header block without differences: the time at which a message was republished, the id of a pin."""
    return re.sub(rb"\r\n(Nats-Time-Stamp|Nats-Pin-Id): [^\r]*", rb"\r\n\1: -", found)


def refusal(error: api.ApiError) -> dict[str, Any]:
    """Return a refusal by its code, and for a wrong sequence with the right one."""
    told: dict[str, Any] = {"refused": _SAME.get(error.err_code, error.err_code)}
    if isinstance(error, api.WrongLastSequenceError):
        told["seq"] = error.seq
    return told


def avoided(step: steps.Step, side: Side) -> bool:
    """Return whether a step is left out on both sides, because a server is wrong there, or we differ on purpose."""
    assert side.engine is not None
    rule = _AVOIDED.get(type(step))
    return rule is not None and rule(step, side, side.engine)


def _creates(step: CreateConsumer, side: Side, engine: Engine) -> bool:
    config = step.config
    if config.get("priority_policy", "none") != "none" and config.get("ack_policy", "explicit") != "explicit":
        # ADR-42 requires explicit acks; a server does not.
        return True
    if engine.session.registry.routes.find(config.get("deliver_subject", "")) is not None:
        # A server's streams store what is delivered to their subjects; ours only have sources.
        return True
    consumer = engine.session.registry.consumers.by_name.get((side.real(step.stream), step.name))
    if consumer is None:
        return False
    # A consumer that loses its filters is not woken for new messages any more: they stay undelivered.
    unfiltered = consumer.filters and not (config.get("filter_subject") or config.get("filter_subjects"))
    # One that becomes durable keeps the threshold it got as an ephemeral one, and the other way round.
    switched = bool(consumer.config.durable_name) != bool(config.get("durable_name", step.name))
    # A server changes them without the clients' knowledge; ADR-42 does not allow it.
    regrouped = _grouping(config) != (consumer.config.priority_policy, consumer.config.priority_groups)
    # A server counts only the last message of each subject as pending then, and delivers earlier ones too.
    filters = tuple(filter(None, (config.get("filter_subject"), *config.get("filter_subjects", ()))))
    recounted = consumer.config.deliver_policy == "last_per_subject" and filters != tuple(consumer.filters)
    return bool(unfiltered or switched or regrouped or recounted)


def _grouping(config: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    return config.get("priority_policy", ""), config.get("priority_groups", ())


def _makes(step: steps.CreateStream | steps.UpdateStream, side: Side, engine: Engine) -> bool:
    # A counter cannot have a TTL: a server, which refuses it, misses it if the TTL of a marker implies it.
    return bool(step.config.get("allow_msg_counter") and step.config.get("subject_delete_marker_ttl"))


def _updates(step: steps.UpdateStream, side: Side, engine: Engine) -> bool:
    # A server removes nothing past a consumer that waits for a sequence yet to come, or that was made for the last
    # message of each subject when there was none: its floor is below 0. Nor past the floor of one with filters, though
    # messages that these leave out are of no interest.
    followers = [
        one for one in engine.session.registry.consumers.by_name.values() if one.log.name == side.real(step.name)
    ]
    ahead = any(one.delivered > one.log.state.last for one in followers)
    below = any(one.config.deliver_policy == "last_per_subject" or one.filters for one in followers)
    return (step.config.get("retention") == "interest" and (ahead or below)) or _makes(step, side, engine)


def _gets(step: steps.GetMessage, side: Side, engine: Engine) -> bool:
    # For all subjects, a server finds no last message once the very last one was removed.
    return step.last_by_subj == ">"


def _publishes(step: Publish, side: Side, engine: Engine) -> bool:
    # Embedded, repeating a publish is harmless whatever it expected; a server checks its expected sequences first.
    log = engine.session.registry.routes.find(step.subject)
    if log is not None and step.headers.get("Nats-TTL") in MALFORMED_LIVES:
        # A server checks it last: after a missing increment, and not if no consumer has interest in the message.
        return log.config.allow_msg_counter or log.config.retention == "interest"
    if _rolls_up_partly(engine, step.subject, step.headers):
        return True
    if (step.headers.get("Nats-Batch-Sequence"), step.headers.get("Nats-Batch-Commit")) == ("0", "eob"):
        # A server counts below zero here, and finds the batch too large.
        return True
    known = step.headers.get("Nats-Msg-Id", "")
    repeated = log is not None and bool(known) and log.state.ids.find(known, engine.session.now()) is not None
    return repeated and any("Sequence" in name for name in step.headers)


def _purges(step: steps.Purge, side: Side, engine: Engine) -> bool:
    return _is_partly_purged(engine, side.real(step.name), step.filter or ">")


def _is_partly_purged(engine: Engine, name: str, purged: str) -> bool:
    # A server moves a consumer with several filters past messages of all when those of one are purged, and counts one
    # with filters that began with the last message of each subject as if it still did.
    for (stream, _), consumer in engine.session.registry.consumers.by_name.items():
        hit = [is_subset(text, purged) for text in consumer.filters]
        last = bool(hit) and consumer.config.deliver_policy == "last_per_subject"
        if stream == name and (last or (any(hit) and not all(hit))):
            return True
    return False


def _rolls_up_partly(engine: Engine, subject: str, block: dict[str, str]) -> bool:
    # A roll-up is a purge, and a schedule is a roll-up.
    log = engine.session.registry.routes.find(subject)
    if log is None or not (block.get("Nats-Rollup") in ("sub", "all") or "Nats-Schedule" in block):
        return False
    purged = ">" if block.get("Nats-Rollup") == "all" else log.appender.stored_subject(subject)
    return _is_partly_purged(engine, log.name, purged)


def _publishes_as_one(step: PublishAtomic, side: Side, engine: Engine) -> bool:
    # A batch that spans streams has no meaning: each server replies for its own part.
    if len({engine.session.registry.routes.find(subject) for subject, _, _ in step.messages}) > 1:
        return True
    if any(_rolls_up_partly(engine, subject, block) for subject, _, block in step.messages):
        return True
    # In a batch, for some malformed TTLs a server reports that TTLs are not allowed.
    return any(block.get("Nats-TTL") in MALFORMED_LIVES for _, _, block in step.messages)


def _resets(step: Reset, side: Side, engine: Engine) -> bool:
    consumer = engine.session.registry.consumers.by_name.get((side.real(step.stream), step.consumer))
    if consumer is None:
        # A server sends no reply.
        return True
    if not step.seq and consumer.unsettled:
        # It goes back to its floor, and a server's lags behind.
        return True
    if step.seq > consumer.log.state.last + 1:
        # A server counts messages published before that sequence as pending, and keeps them by interest, though they
        # will never be delivered.
        return True
    # To a removed sequence: a server goes to the first stored one, or not, depending on when it was removed.
    return (step.seq or consumer.delivered + 1) < consumer.log.state.first


def _acks(step: Ack, side: Side, engine: Engine) -> bool:
    # A removed message that is kept by interest may be settled or not: an embedded store may refuse its ack, a server
    # confirms it.
    delivered = step.meant(side)
    log = engine.session.registry.streams.get(side.real(step.stream))
    if delivered is None or log is None or log.config.retention == "limits":
        return False
    return log.reader.get(delivered.seq) is None


def _fetches(step: Fetch, side: Side, engine: Engine) -> bool:
    # The number of a delivery is in its reply subject, which counts towards max_bytes.
    key = side.real(step.stream), step.consumer
    return key in side.renumbered and bool(step.asked.get("max_bytes"))


_AVOIDED: dict[type[steps.Step], Callable[[Any, Side, Engine], bool]] = {
    Ack: _acks,
    CreateConsumer: _creates,
    Fetch: _fetches,
    steps.CreateStream: _makes,
    steps.UpdateStream: _updates,
    Reset: _resets,
    steps.GetMessage: _gets,
    Publish: _publishes,
    PublishAtomic: _publishes_as_one,
    steps.Purge: _purges,
}
