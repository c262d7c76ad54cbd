"""The verbs on consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import (
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerUnsettled,
    ConsumerUnsettledReply,
    Success,
    Unsettled,
    api_error,
    resolved_consumer,
)
from pelton.consumers import ConsumerLog, check_consumer, check_consumer_update, consumer_info, start_cursor
from pelton.consumers.rules import check_on_workqueue, check_unique_on_workqueue, filters_of
from pelton.consumers.rules_pedantic import check_pedantic
from pelton.engine.pump import listeners_of
from pelton.streams import StreamLog

if TYPE_CHECKING:
    from pelton.engine.verbs import Scope


def create(scope: Scope, request: ConsumerCreate) -> ConsumerInfo:
    """Make a consumer, change one, or answer with the one there is."""
    catalogue = scope.catalogue
    catalogue.sweep(scope.now())
    log = catalogue.stream(request.stream_name)
    log.advance(scope.now())
    if request.pedantic:
        check_pedantic(request.config, log.config.consumer_limits)
    config = _named(scope, request.config, log)
    check_consumer(config, log.config)
    scope.account.check_consumer(config.max_ack_pending, log.name, config.name)
    existing = catalogue.consumers.get((log.name, config.name))
    if existing is not None:
        # Only CONSUMER.PAUSE changes how long there is a pause.
        config = msgspec.structs.replace(config, pause_until=existing.config.pause_until)
        return _again(scope, request, catalogue.consumer(log.name, config.name), config)
    if request.action == "update":
        raise api_error("JSConsumerDoesNotExist", stream=log.name, consumer=config.name)
    others = catalogue.listed_of(log.name)
    if not config.direct:
        scope.account.check_consumers(log.config, len(others), config.name)
    if log.config.retention == "workqueue":
        check_on_workqueue(config, [other.config for other in others])
    cursor = start_cursor(config, log, filters_of(config))
    return _info(scope, catalogue.create_consumer(log, config, cursor, scope.now()))


def _named(scope: Scope, config: ConsumerConfig, log: StreamLog) -> ConsumerConfig:
    if not config.name and not config.durable_name:
        config = msgspec.structs.replace(config, name=scope.new_name())
    return resolved_consumer(config, scope.account.consumer_limits(log.config.consumer_limits))


def _again(scope: Scope, request: ConsumerCreate, existing: ConsumerLog, config: ConsumerConfig) -> ConsumerInfo:
    # Only the verb for it pauses a consumer, or lets it go on: an update does neither.
    config = msgspec.structs.replace(config, pause_until=existing.config.pause_until)
    # To a server, an ephemeral consumer has a threshold, and a request that names none is another one.
    unnamed = not config.durable_name and not request.config.inactive_threshold
    if existing.config == config and not (request.action == "create" and unnamed):
        return _info(scope, existing)
    log = existing.log
    if request.action == "create":
        raise api_error("JSConsumerAlreadyExists", stream=log.name, consumer=config.name)
    check_consumer_update(existing.config, config)
    if existing.config.deliver_subject != config.deliver_subject and listeners_of(scope.catalogue, existing):
        raise api_error("JSConsumerNameExistErr", stream=log.name, consumer=config.name)
    if log.config.retention == "workqueue":
        others = [other.config for other in scope.catalogue.listed_of(log.name) if other is not existing]
        check_unique_on_workqueue(config, others)
    return _info(scope, scope.catalogue.update_consumer(existing, config))


def _info(scope: Scope, consumer: ConsumerLog) -> ConsumerInfo:
    bound = bool(listeners_of(scope.catalogue, consumer))
    return consumer_info(consumer, scope.waiting_pulls(consumer), scope.now(), push_bound=bound)


def info_of(scope: Scope, stream: str, name: str) -> ConsumerInfo:
    return _info(scope, scope.catalogue.consumer(stream, name))


def info(scope: Scope, request: ConsumerInfoRequest) -> ConsumerInfo:
    """Report a consumer."""
    scope.catalogue.sweep(scope.now())
    consumer = scope.catalogue.consumer(request.stream, request.name)
    consumer.log.advance(scope.now())
    return _info(scope, consumer)


def names_of(scope: Scope, stream: str) -> list[str]:
    scope.catalogue.stream(stream)
    scope.catalogue.sweep(scope.now())
    return sorted(consumer.name for consumer in scope.catalogue.listed_of(stream))


def delete(scope: Scope, request: ConsumerDelete) -> Success:
    """Remove a consumer; the messages that it awaited acks for stay in the stream."""
    scope.catalogue.delete_consumers([scope.catalogue.consumer(request.stream, request.name)])
    return Success()


_UNSETTLED_PAGE: Final = 1000


def unsettled(scope: Scope, request: ConsumerUnsettled) -> ConsumerUnsettledReply:
    """List the messages delivered and not settled."""
    consumer = scope.catalogue.consumer(request.stream, request.name)
    sql = "SELECT seq, n, due, waits FROM pending WHERE consumer=? ORDER BY seq LIMIT ? OFFSET ?"
    rows = consumer.db.execute(sql, (consumer.id, _UNSETTLED_PAGE, request.offset)).fetchall()
    waiting = consumer.db.value("SELECT ifnull(sum(waits), 0) FROM pending WHERE consumer=?", (consumer.id,))
    return ConsumerUnsettledReply(
        total=consumer.unsettled,
        offset=request.offset,
        limit=_UNSETTLED_PAGE,
        messages=tuple(Unsettled(seq, n, due, bool(waits)) for seq, n, due, waits in rows),  # type: ignore[arg-type]  # integer columns
        waiting=int(waiting),
    )
