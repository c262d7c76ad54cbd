"""The checks of a pull request. Pure; statuses and texts are nats-server 2.15's."""

from __future__ import annotations

from typing import Final

from pelton.api import ApiError, ConsumerConfig, PullRequest, from_reply

_BAD_REQUEST: Final = 400
_CONFLICT: Final = 409
_LOWEST_PRIORITY: Final = 9
_NEAREST_NS: Final = 5 * 10**9
_FARTHEST_NS: Final = 3600 * 10**9


def check_pull(request: PullRequest, config: ConsumerConfig, stream: str) -> None:
    """Raise PullRefusedError or BadRequestError if a consumer does not accept such a pull."""
    text = _excess(request, config)
    if text:
        raise _refused(_CONFLICT, text, config, stream)
    text = _misfit(request, config)
    if text:
        raise _refused(_BAD_REQUEST, f"Bad Request - {text}", config, stream)


def _excess(request: PullRequest, config: ConsumerConfig) -> str:
    if config.deliver_subject:
        return "Consumer is push based"
    if 0 < config.max_batch < request.batch:
        return f"Exceeded MaxRequestBatch of {config.max_batch}"
    if 0 < config.max_expires.ns < (request.expires_ns or 0):
        return f"Exceeded MaxRequestExpires of {config.max_expires.seconds:g}s"
    if 0 < config.max_bytes < request.max_bytes:
        return f"Exceeded MaxRequestMaxBytes of {config.max_bytes}"
    return ""


def _misfit(request: PullRequest, config: ConsumerConfig) -> str:
    """Return what is wrong with the fields of priority groups (ADR-42)."""
    policy = config.priority_policy
    if config.priority_groups and not request.group:
        return "Priority Group missing"
    if config.priority_groups and request.group not in config.priority_groups:
        return "Invalid Priority Group"
    if not 0 <= request.priority <= _LOWEST_PRIORITY:
        return "Priority must be between 0 and 9"
    if policy != "overflow" and (request.min_pending or request.min_ack_pending or request.failover_ns):
        return "Not a Overflow Priority consumer"
    if request.failover_ns and not _NEAREST_NS <= request.failover_ns <= _FARTHEST_NS:
        return "Failover must be between 5s and 3600s"
    if policy != "pinned_client" and request.pin_id:
        return "Not a Pinned Client Priority consumer"
    return ""


def too_many_waiting(config: ConsumerConfig, stream: str) -> ApiError:
    """Return the error for a pull when ``max_waiting`` others are waiting."""
    return _refused(_CONFLICT, "Exceeded MaxWaiting", config, stream)


def _refused(status: int, text: str, config: ConsumerConfig, stream: str) -> ApiError:
    return from_reply(status, 0, text, stream=stream, consumer=config.name)
