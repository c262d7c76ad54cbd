"""Which configurations and changes of consumers are valid. Pure; checks, their order and codes are nats-server 2.15's.

A pedantic request refuses what another corrects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

from pelton.api import (
    ApiError,
    ConfigError,
    ConsumerConfig,
    ConsumerLimits,
    PullRequest,
    StreamConfig,
    api_error,
    from_reply,
    parse_rfc3339,
)
from pelton.api.json_values import go_integer, quote_text
from pelton.api.times import ZERO, format_duration
from pelton.subjects import clash_between, clash_within, has_wildcard, is_filter, is_subject, overlaps

ALL: Final = 100


def sample_percent(text: str) -> int:
    """Return how many of a hundred acks are reported; ``text`` has passed :func:`check_sample_freq`."""
    return go_integer(text.removesuffix("%")) if text else 0


def check_sample_freq(config: ConsumerConfig, stream: str) -> None:
    """Raise ApiError (10095) if ``sample_freq`` is not a share such as "50" or "50%"."""
    if not config.sample_freq:
        return
    text = config.sample_freq.removesuffix("%")
    try:
        if go_integer(text) >= 0:
            return
        reason = "<nil>"
    except ValueError as error:
        reason = f"strconv.Atoi: parsing {quote_text(text)}: {error}"
    raise api_error("JSConsumerInvalidSamplingErrF", stream=stream, consumer=config.name, err=reason)


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


_NAME_LIMIT: Final = 255
_NOT_IN_NAMES: Final = frozenset(" \t\r\n.*>/\\")
_DESCRIPTION_LIMIT: Final = 4096
_METADATA_LIMIT: Final = 128 * 1024
_MOST_RANKS: Final = 8


def check_consumer(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Raise ApiError or ConfigError if a resolved configuration is invalid on this stream."""
    _check_name(config, stream.name)
    if len(config.description) > _DESCRIPTION_LIMIT:
        where = {"stream": stream.name, "consumer": config.name}
        raise api_error("JSConsumerDescriptionTooLongErrF", **where, max=_DESCRIPTION_LIMIT)
    _check_replicas(config, stream.name)
    check_acks(config)
    check_direction(config, stream)
    _check_limits(config, stream)
    _check_filters(config, stream.name)
    _check_start(config)
    check_sample_freq(config, stream.name)
    if sum(len(key) + len(value) for key, value in config.metadata.items()) > _METADATA_LIMIT:
        raise api_error("JSConsumerMetadataLengthErrF", consumer=config.name, limit=f"{_METADATA_LIMIT // 1024}KB")
    check_heartbeats(config)
    check_groups(config)
    _check_supported(config)


def _check_name(config: ConsumerConfig, stream: str) -> None:
    name = config.name
    if config.durable_name and config.durable_name != name:
        raise api_error("JSConsumerDurableNameNotMatchSubjectErr", stream=stream, consumer=name)
    if any(char in name for char in "/\\"):
        raise api_error("JSConsumerNameContainsPathSeparatorsErr", stream=stream, consumer=name)
    if not name or any(char in _NOT_IN_NAMES for char in name) or not name.isprintable():
        text = "consumer name can not contain '.', '*', '>', '\\', '/'"
        raise api_error("JSStreamInvalidConfigF", stream=stream, consumer=name, err=text)
    if len(name.encode()) > _NAME_LIMIT:
        raise api_error("JSConsumerNameTooLongErrF", stream=stream, consumer=name, max=_NAME_LIMIT)


def _check_replicas(config: ConsumerConfig, stream: str) -> None:
    if config.num_replicas < 0:
        raise api_error("JSReplicasCountCannotBeNegative", stream=stream, consumer=config.name)
    if config.num_replicas > 1:
        raise ConfigError(
            f"consumer {config.name!r} of stream {stream!r}: num_replicas is {config.num_replicas}, but an embedded "
            "store keeps one copy: leave it out here, replication lives on a NATS cluster (pelton.open('nats://...'))"
        )


def _check_supported(config: ConsumerConfig) -> None:
    if config.max_ack_pending_per_subject < 0:
        raise ConfigError(f"consumer {config.name!r}: max_ack_pending_per_subject must be 0 (no limit) or more")
    if config.max_ack_pending_subject_end and not config.max_ack_pending_per_subject:
        raise ConfigError(f"consumer {config.name!r}: max_ack_pending_subject_end needs max_ack_pending_per_subject")
    _check_ranks(config)
    if config.max_ack_pending_per_subject and config.ack_policy != "explicit":
        raise ConfigError(f"consumer {config.name!r}: max_ack_pending_per_subject needs ack_policy 'explicit'")


def _check_ranks(config: ConsumerConfig) -> None:
    ranks = config.max_ack_pending_subject_ranks
    if not ranks:
        return
    if not config.max_ack_pending_per_subject:
        raise ConfigError(f"consumer {config.name!r}: max_ack_pending_subject_ranks needs max_ack_pending_per_subject")
    if len(ranks) > _MOST_RANKS:
        raise ConfigError(f"consumer {config.name!r}: max_ack_pending_subject_ranks has {len(ranks)}, at most 8 do")
    for index, prefix in enumerate(ranks):
        others = (*ranks[:index], *ranks[index + 1 :])
        if not is_filter(prefix) or has_wildcard(prefix) or any(f"{o}.".startswith(f"{prefix}.") for o in others):
            raise ConfigError(
                f"consumer {config.name!r}: max_ack_pending_subject_ranks has {prefix!r}; each must be the beginning "
                "of a subject, in whole tokens, and none that of another one"
            )


def _check_filters(config: ConsumerConfig, stream: str) -> None:
    # As on nats-server, a filter that does not match the stream's subjects (yet) is not an error.
    where = {"stream": stream, "consumer": config.name}
    if config.filter_subject and config.filter_subjects:
        raise api_error("JSConsumerDuplicateFilterSubjects", **where)
    filters = filters_of(config)
    if any(not text for text in filters):
        raise api_error("JSConsumerEmptyFilter", **where)
    # The first mistake is told.
    valid = tuple(takewhile(is_filter, filters))
    if clash_within(valid):
        raise api_error("JSConsumerOverlappingSubjectFilters", **where)
    if len(valid) < len(filters):
        raise api_error("JSStreamInvalidConfigF", **where, err="invalid subject")


# The name of each policy in errors, and the optional start that it needs.
_POLICIES: Final = {
    "all": ("all", ""),
    "last": ("last", ""),
    "last_per_subject": ("last per subject", ""),
    "new": ("new", ""),
    "by_start_sequence": ("by start sequence", "sequence"),
    "by_start_time": ("by start time", "time"),
}


def _check_start(config: ConsumerConfig) -> None:
    name, needed = _POLICIES[config.deliver_policy]
    where = {"consumer": config.name}
    given = {"sequence": bool(config.opt_start_seq), "time": bool(config.opt_start_time)}
    for start, is_set in given.items():
        if is_set and start != needed:
            text = f"consumer delivery policy is deliver {name}, but optional start {start} is also set"
            raise api_error("JSConsumerInvalidPolicyErrF", **where, err=text)
    missing = f"start {needed}" if needed and not given[needed] else ""
    if config.deliver_policy == "last_per_subject" and not filters_of(config):
        missing = "filter subject"
    if missing:
        text = f"consumer delivery policy is deliver {name}, but optional {missing} is not set"
        raise api_error("JSConsumerInvalidPolicyErrF", **where, err=text)
    if config.opt_start_time:
        parse_rfc3339(config.opt_start_time)


def _check_limits(config: ConsumerConfig, stream: StreamConfig) -> None:
    where = {"stream": stream.name, "consumer": config.name}
    limits = stream.consumer_limits
    if 0 < limits.max_ack_pending < config.max_ack_pending:
        raise api_error("JSConsumerMaxPendingAckExcessErrF", **where, limit=limits.max_ack_pending)
    if 0 < limits.inactive_threshold.ns < config.inactive_threshold.ns:
        limit = format_duration(limits.inactive_threshold.ns)
        raise api_error("JSConsumerInactiveThresholdExcess", **where, limit=limit)


def filters_of(config: ConsumerConfig) -> tuple[str, ...]:
    """Return the filters of a consumer; empty means every subject."""
    return config.filter_subjects or ((config.filter_subject,) if config.filter_subject else ())


def check_on_workqueue(config: ConsumerConfig, others: Sequence[ConsumerConfig]) -> None:
    """Raise ApiError if a new consumer does not fit a work queue and its other consumers."""
    if config.direct:
        return
    if config.ack_policy not in ("explicit", "flow_control"):
        raise api_error("JSConsumerWQRequiresExplicitAckErr", consumer=config.name)
    if config.deliver_policy != "all":
        raise api_error("JSConsumerWQConsumerNotDeliverAllErr", consumer=config.name)
    check_unique_on_workqueue(config, others)


def check_unique_on_workqueue(config: ConsumerConfig, others: Sequence[ConsumerConfig]) -> None:
    """Raise ApiError if two consumers of a work queue would want the same message."""
    mine = filters_of(config)
    for other in others:
        theirs = filters_of(other)
        if not mine:
            raise api_error("JSConsumerWQMultipleUnfilteredErr", consumer=config.name)
        if not theirs or clash_between(mine, theirs):
            raise api_error("JSConsumerWQConsumerNotUniqueErr", consumer=config.name)


# Fields that an update cannot change, each with its name in errors.
_FIXED: Final = {
    "deliver_policy": "deliver policy",
    "mem_storage": "storage type",
    "direct": "direct",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
}


def check_consumer_update(old: ConsumerConfig, new: ConsumerConfig) -> None:
    """Raise ApiError (10012) if a consumer cannot be changed from ``old`` to ``new``."""
    for field, name in _FIXED.items():
        if getattr(old, field) != getattr(new, field):
            raise _refusal(new, f"{name} can not be updated")
    if bool(old.deliver_subject) != bool(new.deliver_subject):
        text = "push consumer to pull" if old.deliver_subject else "pull consumer to push"
        raise _refusal(new, f"can not update {text} based")
    if old.max_waiting != new.max_waiting:
        raise _refusal(new, "max waiting can not be updated")
    if (old.priority_policy, old.priority_groups) != (new.priority_policy, new.priority_groups):
        # ADR-42; nats-server 2.15 accepts it, although clients do not learn of the change.
        raise _refusal(new, "priority policy and groups can not be updated")
    if bool(old.max_ack_pending_per_subject) != bool(new.max_ack_pending_per_subject):
        raise _refusal(new, "max ack pending per subject can not be switched on or off")
    ranks = old.max_ack_pending_subject_ranks
    if ranks and ranks != new.max_ack_pending_subject_ranks:
        raise _refusal(new, "max ack pending subject ranks can only be added")


def _refusal(config: ConsumerConfig, text: str) -> Exception:
    return api_error("JSConsumerCreateErrF", consumer=config.name, err=text)


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
            raise _pedantic(config, text)
    if config.backoff and config.ack_wait != config.backoff[0]:
        raise _pedantic(config, "first backoff value has to equal batch AckWait")
    if not config.max_ack_pending and limits.max_ack_pending:
        raise _pedantic(config, "max_ack_pending must be set if it's configured in stream limits")
    if not config.inactive_threshold and limits.inactive_threshold:
        raise _pedantic(config, "inactive_threshold must be set if it's configured in stream limits")
    if config.ack_policy == "flow_control" and config.deliver_subject and not config.flow_control:
        raise api_error("JSConsumerAckFCRequiresFCErr", consumer=config.name)


def _pedantic(config: ConsumerConfig, text: str) -> Exception:
    return api_error("JSPedanticErrF", consumer=config.name, err=text)


# --- the checks of a pull request. Pure; statuses and texts are nats-server 2.15's

_BAD_REQUEST: Final = 400
_CONFLICT: Final = 409
_LOWEST_PRIORITY: Final = 9
_NEAREST_NS: Final = 5 * 10**9
_FARTHEST_NS: Final = 3600 * 10**9


def check_pull(request: PullRequest, config: ConsumerConfig, stream: str) -> None:
    """Raise PullRefusedError or BadRequestError if a consumer does not accept such a pull."""
    text = _excess(request, config)
    if text:
        raise _pull_refused(_CONFLICT, text, config, stream)
    text = _misfit(request, config)
    if text:
        raise _pull_refused(_BAD_REQUEST, f"Bad Request - {text}", config, stream)


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
    return _pull_refused(_CONFLICT, "Exceeded MaxWaiting", config, stream)


def _pull_refused(status: int, text: str, config: ConsumerConfig, stream: str) -> ApiError:
    return from_reply(status, 0, text, stream=stream, consumer=config.name)
