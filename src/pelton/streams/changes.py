"""Which changes of a stream's configuration are allowed, and the configuration that results. Pure.

Most settings can change freely. Some are fixed when the stream is created, and some can be switched on but never off
again, because others may rely on what the stream has promised (nothing is deleted, messages may carry a TTL).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pelton.api import ApiError, ConsumerConfig, StreamConfig, api_error
from pelton.api.config import sealed_stream
from pelton.streams.rules import invalid

_UPDATE: Final = "stream configuration update can not"

_FIXED: Final = {
    "storage": f"{_UPDATE} change storage type",
    "persist_mode": f"{_UPDATE} change persist mode",
    "allow_msg_counter": f"{_UPDATE} change message counter setting",
}
_ONE_WAY: Final = {
    "sealed": f"{_UPDATE} unseal a sealed stream",
    "deny_delete": f"{_UPDATE} cancel deny message deletes",
    "deny_purge": f"{_UPDATE} cancel deny purge",
    "allow_msg_ttl": "message TTL status can not be disabled",
    "allow_msg_schedules": "message schedules can not be disabled",
}


def changed_stream(old: StreamConfig, new: StreamConfig) -> StreamConfig:
    """Return the configuration that results from an update of ``old`` to the resolved and checked ``new``.

    Raises ApiError if the change is not allowed.
    """
    if old.retention != new.retention and "workqueue" in (old.retention, new.retention):
        raise invalid(f"{_UPDATE} change retention policy to/from workqueue", new.name)
    for field, text in _FIXED.items():
        if getattr(old, field) != getattr(new, field):
            raise invalid(text, new.name)
    for field, text in _ONE_WAY.items():
        if getattr(old, field) and not getattr(new, field):
            raise invalid(text, new.name)
    return sealed_stream(new) if new.sealed else new


def check_consumers(old: StreamConfig, new: StreamConfig, consumers: Iterable[ConsumerConfig]) -> None:
    """Raise ApiError (10069) if consumers of the stream exceed changed ``consumer_limits``."""
    if old.consumer_limits == new.consumer_limits:
        return
    limits = new.consumer_limits
    beyond = [
        consumer.name
        for consumer in consumers
        if 0 < limits.inactive_threshold.ns < consumer.inactive_threshold.ns
        or 0 < limits.max_ack_pending < consumer.max_ack_pending
    ]
    if beyond:
        raise _update_failed(f"change to limits violates consumers: {', '.join(beyond)}", new.name)


def _update_failed(text: str, stream: str) -> ApiError:
    return api_error("JSStreamUpdateErrF", stream=stream, err=text)
