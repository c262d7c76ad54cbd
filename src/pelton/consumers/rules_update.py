"""Which changes of a consumer are allowed. Pure; the refusals and their texts are nats-server 2.15's."""

from __future__ import annotations

from typing import Final

from pelton.api import ConsumerConfig, api_error

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
            raise _refused(new, f"{name} can not be updated")
    if bool(old.deliver_subject) != bool(new.deliver_subject):
        text = "push consumer to pull" if old.deliver_subject else "pull consumer to push"
        raise _refused(new, f"can not update {text} based")
    if old.max_waiting != new.max_waiting:
        raise _refused(new, "max waiting can not be updated")
    if (old.priority_policy, old.priority_groups) != (new.priority_policy, new.priority_groups):
        # ADR-42; nats-server 2.15 accepts it, although clients do not learn of the change.
        raise _refused(new, "priority policy and groups can not be updated")
    if bool(old.max_ack_pending_per_subject) != bool(new.max_ack_pending_per_subject):
        raise _refused(new, "max ack pending per subject can not be switched on or off")
    ranks = old.max_ack_pending_subject_ranks
    if ranks and ranks != new.max_ack_pending_subject_ranks:
        raise _refused(new, "max ack pending subject ranks can only be added")


def _refused(config: ConsumerConfig, text: str) -> Exception:
    return api_error("JSConsumerCreateErrF", consumer=config.name, err=text)
