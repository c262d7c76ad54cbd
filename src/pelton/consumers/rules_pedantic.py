"""What a pedantic request refuses instead of correcting it (the ``pedantic`` flag of nats-server). Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import ConsumerConfig, ConsumerLimits, api_error
from pelton.api.durations import ZERO

# A lower value is corrected to this one.
_LEAST: Final = {
    "max_deliver": (-1, "max_deliver must be set to -1"),
    "max_waiting": (0, "max_waiting must not be negative"),
    "max_ack_pending": (-1, "max_ack_pending must be set to -1"),
    "max_batch": (0, "max_batch must not be negative"),
    "max_expires": (ZERO, "max_expires must not be negative"),
    "max_bytes": (0, "max_bytes must not be negative"),
    "idle_heartbeat": (ZERO, "idle_heartbeat must not be negative"),
    "inactive_threshold": (ZERO, "inactive_threshold must not be negative"),
    "priority_timeout": (ZERO, "priority_timeout must not be negative"),
}


def check_pedantic(config: ConsumerConfig, limits: ConsumerLimits) -> None:
    """Raise ApiError (10157) if resolving a configuration would change what was asked for."""
    for field, (least, text) in _LEAST.items():
        if getattr(config, field) < least:
            raise _refused(config, text)
    if config.backoff and config.ack_wait != config.backoff[0]:
        raise _refused(config, "first backoff value has to equal batch AckWait")
    if not config.max_ack_pending and limits.max_ack_pending:
        raise _refused(config, "max_ack_pending must be set if it's configured in stream limits")
    if not config.inactive_threshold and limits.inactive_threshold:
        raise _refused(config, "inactive_threshold must be set if it's configured in stream limits")
    if config.ack_policy == "flow_control" and config.deliver_subject and not config.flow_control:
        raise api_error("JSConsumerAckFCRequiresFCErr", consumer=config.name)


def _refused(config: ConsumerConfig, text: str) -> Exception:
    return api_error("JSPedanticErrF", consumer=config.name, err=text)
