"""Which delivery settings of a consumer are valid: push, pull, acks, priority groups. Pure.

The checks, their order and their codes are nats-server 2.15's.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pelton.api import ConsumerConfig, StreamConfig, api_error
from pelton.subjects import has_wildcard, is_subject, overlaps

_MILLISECOND: Final = 1_000_000
_LEAST_HEARTBEAT: Final = 100 * _MILLISECOND
_FLOW_CONTROL_HEARTBEAT: Final = 1000 * _MILLISECOND
_GROUP: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")


def check_acks(config: ConsumerConfig) -> None:
    """Raise ApiError if the fields about acks contradict each other."""
    where = _where(config)
    if any(delay.ns < 0 for delay in config.backoff):
        raise api_error("JSConsumerBackOffNegativeErr", **where)
    if config.ack_wait.ns < 0:
        raise api_error("JSConsumerAckWaitNegativeErr", **where)
    if config.ack_policy == "flow_control":
        _check_flow_control_acks(config)
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise api_error("JSConsumerMaxDeliverBackoffErr", **where)


def _check_flow_control_acks(config: ConsumerConfig) -> None:
    """Check that a consumer with ack policy ``flow_control`` has the settings that it needs (ADR-60)."""
    where = _where(config)
    if not config.deliver_subject:
        raise api_error("JSConsumerAckFCRequiresPushErr", **where)
    if not config.flow_control:
        raise api_error("JSConsumerAckFCRequiresFCErr", **where)
    if config.idle_heartbeat.ns != _FLOW_CONTROL_HEARTBEAT:
        raise api_error("JSStreamInvalidConfigF", **where, err="flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise api_error("JSConsumerAckFCRequiresMaxAckPendingErr", **where)
    if config.ack_wait or config.backoff:
        raise api_error("JSConsumerAckFCRequiresNoAckWaitErr", **where)
    if config.max_deliver > 0:
        raise api_error("JSConsumerAckFCRequiresNoMaxDeliverErr", **where)


def check_direction(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Raise ApiError if a field does not fit a push consumer, or a pull consumer."""
    if config.deliver_subject:
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    if config.direct:
        if not config.deliver_subject:
            raise api_error("JSConsumerDirectRequiresPushErr", **_where(config))
        if config.durable_name:
            raise api_error("JSConsumerDirectRequiresEphemeralErr", **_where(config))


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    where = _where(config)
    if has_wildcard(config.deliver_subject):
        raise api_error("JSConsumerDeliverToWildcardsErr", **where)
    if not is_subject(config.deliver_subject):
        raise api_error("JSConsumerInvalidDeliverSubject", **where)
    if any(overlaps(config.deliver_subject, subject) for subject in stream.subjects):
        raise api_error("JSConsumerDeliverCycleErr", **where)
    if config.max_waiting:
        raise api_error("JSConsumerPushMaxWaitingErr", **where)
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise api_error("JSConsumerMaxPendingAckPolicyRequiredErr", **where)
    if 0 < config.idle_heartbeat.ns < _LEAST_HEARTBEAT:
        raise api_error("JSConsumerSmallHeartbeatErr", **where)


def check_heartbeats(config: ConsumerConfig) -> None:
    """Raise ApiError (10108) if a push consumer has flow control without heartbeats, which would show a stall."""
    if config.deliver_subject and config.flow_control and not config.idle_heartbeat:
        raise api_error("JSConsumerWithFlowControlNeedsHeartbeats", **_where(config))


def _check_pull(config: ConsumerConfig, stream: StreamConfig) -> None:
    where = _where(config)
    if config.ack_policy == "none" and stream.retention == "workqueue":
        raise api_error("JSConsumerPullRequiresAckErr", **where)
    if config.rate_limit_bps:
        raise api_error("JSConsumerPullWithRateLimitErr", **where)
    if config.idle_heartbeat:
        raise api_error("JSConsumerHBRequiresPushErr", **where)
    if config.flow_control:
        raise api_error("JSConsumerFCRequiresPushErr", **where)
    if 0 < config.max_expires.ns < _MILLISECOND:
        raise api_error("JSConsumerMaxRequestExpiresTooSmall", **where)


def check_groups(config: ConsumerConfig) -> None:
    """Raise ApiError if the settings of priority groups are invalid (ADR-42)."""
    where = _where(config)
    if config.priority_policy in ("", "none"):
        if config.priority_groups:
            raise api_error("JSConsumerPriorityGroupWithPolicyNone", **where)
        if config.priority_timeout.ns > 0:
            raise api_error("JSConsumerPinnedTTLWithoutPriorityPolicyNone", **where)
        return
    if config.deliver_subject:
        raise api_error("JSConsumerPushWithPriorityGroupErr", **where)
    if not config.priority_groups:
        raise api_error("JSConsumerPriorityPolicyWithoutGroup", **where)
    for group in config.priority_groups:
        if not group:
            raise api_error("JSConsumerEmptyGroupName", **where)
        if not _GROUP.fullmatch(group):
            raise api_error("JSConsumerInvalidGroupNameErr", **where)
    # ADR-42 asks for this; nats-server 2.15 accepts more, and then serves the first group alone.
    if len(config.priority_groups) > 1:
        raise api_error("JSConsumerInvalidPolicyErrF", **where, err="only one priority group is supported")


def _where(config: ConsumerConfig) -> dict[str, Any]:
    return {"consumer": config.name}
