"""The server's defaults, for fields that a configuration leaves to the server.

The values, and when each applies, were read from the replies of nats-server 2.15. A created stream or
consumer is kept and reported in its resolved form: the rest of the code never sees a "left to the server" 0.
"""

from typing import Final

import msgspec

from pelton.api.config import ConsumerConfig, ConsumerLimits, Placement, Republish, StreamConfig
from pelton.api.durations import ZERO, Duration

DUPLICATE_WINDOW: Final = Duration(120)
ACK_WAIT: Final = Duration(30)
INACTIVE_THRESHOLD: Final = Duration(5)
MAX_ACK_PENDING: Final = 1000
MAX_WAITING: Final = 512
PINNED_TIMEOUT: Final = Duration(120)
FLOW_CONTROL_HEARTBEAT: Final = Duration(1)
NO_LIMITS: Final = ConsumerLimits()
SERVER_METADATA: Final = frozenset({"_nats.level", "_nats.req.level", "_nats.ver"})
"""Keys in which a server describes itself; they are no part of a user's configuration."""
_ANYWHERE: Final = Placement()
_ALL: Final = ">"


def resolved_stream(config: StreamConfig) -> StreamConfig:
    """Return the configuration as a server reports it, with all defaults. Nothing is checked here."""
    window = config.duplicate_window
    # A stream that copies others keeps no message ids, also if it has subjects of its own.
    if not window and not (config.mirror or config.sources):
        window = min(DUPLICATE_WINDOW, config.max_age) if config.max_age > ZERO else DUPLICATE_WINDOW
    # Markers and schedules replace the messages under their subjects.
    replaces = config.allow_msg_schedules or config.subject_delete_marker_ttl > ZERO
    return msgspec.structs.replace(
        config,
        subjects=config.subjects or _implied_subjects(config),
        max_msgs=_limit(config.max_msgs),
        max_bytes=_limit(config.max_bytes),
        max_consumers=_limit(config.max_consumers),
        max_msg_size=_limit(config.max_msg_size),
        max_msgs_per_subject=_limit(config.max_msgs_per_subject),
        num_replicas=config.num_replicas or 1,
        duplicate_window=window,
        republish=_resolved_republish(config),
        deny_purge=config.deny_purge and (config.allow_rollup_hdrs or not replaces),
        allow_rollup_hdrs=config.allow_rollup_hdrs or replaces,
        allow_msg_ttl=config.allow_msg_ttl or config.subject_delete_marker_ttl > ZERO,
        persist_mode="" if config.persist_mode == "default" else config.persist_mode,
        placement=None if config.placement == _ANYWHERE else config.placement,
        metadata=_own_metadata(config),
    )


def sealed_stream(config: StreamConfig) -> StreamConfig:
    """Return a resolved configuration sealed: no message is added or removed, nor expires."""
    return msgspec.structs.replace(
        config, max_age=ZERO, discard="new", deny_delete=True, deny_purge=True, allow_rollup_hdrs=False
    )


def resolved_consumer(config: ConsumerConfig, limits: ConsumerLimits = NO_LIMITS) -> ConsumerConfig:
    """Return the configuration as a server reports it; `limits` are those of the stream. Nothing is checked here."""
    timed = config.ack_policy in ("explicit", "all")
    pinned = config.priority_policy == "pinned_client"
    threshold = max(config.inactive_threshold, ZERO) or limits.inactive_threshold
    by_flow = config.ack_policy == "flow_control"
    waiting = max(config.max_waiting, 0)
    return msgspec.structs.replace(
        config,
        name=config.name or config.durable_name,
        ack_wait=config.backoff[0] if config.backoff else config.ack_wait or (ACK_WAIT if timed else ZERO),
        max_deliver=_limit(config.max_deliver),
        max_ack_pending=_ack_pending(config, limits),
        max_waiting=waiting if config.deliver_subject else waiting or MAX_WAITING,
        max_batch=max(config.max_batch, 0),
        max_expires=max(config.max_expires, ZERO),
        max_bytes=max(config.max_bytes, 0),
        flow_control=config.flow_control or by_flow,
        idle_heartbeat=FLOW_CONTROL_HEARTBEAT if by_flow else max(config.idle_heartbeat, ZERO),
        priority_policy="" if config.priority_policy == "none" else config.priority_policy,
        priority_timeout=max(config.priority_timeout, ZERO) or (PINNED_TIMEOUT if pinned else ZERO),
        inactive_threshold=threshold or (ZERO if config.durable_name else INACTIVE_THRESHOLD),
        metadata=_own_metadata(config),
    )


def _own_metadata(config: StreamConfig | ConsumerConfig) -> dict[str, str]:
    return {key: value for key, value in config.metadata.items() if key not in SERVER_METADATA}


def _ack_pending(config: ConsumerConfig, limits: ConsumerLimits) -> int:
    asked = max(config.max_ack_pending, -1) or limits.max_ack_pending
    return asked or (0 if config.ack_policy == "none" else MAX_ACK_PENDING)


def _limit(value: int) -> int:
    """Return a limit as it is reported: -1 for no limit."""
    return value if value > 0 else -1


def _resolved_republish(config: StreamConfig) -> Republish | None:
    """Return what is republished: an empty source is everything; ">" to ">" is what the transform makes."""
    republish, transform = config.republish, config.subject_transform
    if republish is None:
        return None
    src, dest = republish.src or _ALL, republish.dest
    if (src, dest) == (_ALL, _ALL) and transform is not None and config.subjects == (transform.src,):
        src = dest = transform.dest
    return msgspec.structs.replace(republish, src=src, dest=dest)


def _implied_subjects(config: StreamConfig) -> tuple[str, ...]:
    return () if config.mirror or config.sources else (config.name,)
