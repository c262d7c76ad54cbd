"""Where the two sides differ on purpose: all of it, with reasons. Whatever is not told here has to be equal.

Some differences are left out of what is compared (`plain`, `refusal`); where one would make all that follows differ,
the step is left out on both sides (`avoided`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import pelton
from pelton import api
from pelton.engine import Engine
from pelton.subjects import is_subset
from tests.differential import steps

# When, and who: no two stores agree on it.
_TIMES = frozenset({"ts", "created", "time", "time_ns", "first_ts", "last_ts", "last_active", "token"})
# A server says of every stream that it has created it, also of one there was.
_UNTRUE = frozenset({"did_create"})
# Which of two codes says that there is no such message depends on how a server's files are cut into blocks.
_SAME = {10043: 10057}

# While acks are awaited, a server's floor stays behind gaps in the stream and the numbers of redeliveries.
_LAGGING = frozenset({"ack_floor"})


def plain(value: Any) -> Any:
    """Return an answer as plain data without what differs by nature."""
    if isinstance(value, api.StreamState) and not value.last_seq:
        # Never used: a server calls its sequence 0 deleted; after a purge it begins at 1 instead of 0.
        value = msgspec.structs.replace(value, num_deleted=0, deleted=[], first_seq=0)
    if isinstance(value, msgspec.Struct):
        left_out = _TIMES | _UNTRUE
        if isinstance(value, api.ConsumerInfo) and value.num_ack_pending:
            left_out |= _LAGGING
        names = (name for name in value.__struct_fields__ if name not in left_out)
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not str(key).startswith("_nats.")}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def refusal(error: api.ApiError) -> dict[str, Any]:
    """Return a refusal by its code, and for a wrong sequence by the right one."""
    told: dict[str, Any] = {"refused": _SAME.get(error.err_code, error.err_code)}
    if isinstance(error, api.WrongLastSequenceError):
        told["seq"] = error.seq
    return told


def avoided(step: steps.Step, embedded: pelton.Jet) -> bool:
    """Return whether a step is left out on both sides, because a server goes wrong there, or we differ on purpose."""
    assert isinstance(embedded.backend, Engine)
    rule = _AVOIDED.get(type(step))
    return rule is not None and rule(step, embedded.backend)


def _creates(step: steps.CreateConsumer, engine: Engine) -> bool:
    consumer = engine.catalogue.consumers.get((step.stream, step.name))
    if consumer is None:
        return False
    config = step.config
    # A consumer that loses its filters is not told of new messages any more: they lie there undelivered.
    unfiltered = consumer.filters and not (config.get("filter_subject") or config.get("filter_subjects"))
    # One that becomes durable keeps the threshold it was given as an ephemeral one, and the other way round.
    switched = bool(consumer.config.durable_name) != bool(config.get("durable_name", step.name))
    return bool(unfiltered or switched)


def _gets(step: steps.GetMessage, engine: Engine) -> bool:
    # Of all subjects, a server knows no last message once the very last one was removed.
    return step.last_by_subj == ">"


def _publishes(step: steps.Publish, engine: Engine) -> bool:
    # Embedded, repeating a publish is harmless whatever it expected; a server looks at its sequences first.
    log = engine.catalogue.route(step.subject)
    known = step.headers.get("Nats-Msg-Id", "")
    repeated = log is not None and bool(known) and log.ids.find(known, engine.now()) is not None
    return repeated and any("Sequence" in name for name in step.headers)


def _purges(step: steps.Purge, engine: Engine) -> bool:
    # A server takes a consumer with several filters past messages of all when those of one are purged.
    purged = step.filter or ">"
    for (stream, _), consumer in engine.catalogue.consumers.items():
        hit = [is_subset(text, purged) for text in consumer.filters]
        if stream == step.name and any(hit) and not all(hit):
            return True
    return False


_AVOIDED: dict[type[steps.Step], Callable[[Any, Engine], bool]] = {
    steps.CreateConsumer: _creates,
    steps.GetMessage: _gets,
    steps.Publish: _publishes,
    steps.Purge: _purges,
}
