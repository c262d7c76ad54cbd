"""Which time settings can be combined (ADR-43, ADR-48, ADR-51). Pure.

Texts and codes are nats-server's.
"""

from __future__ import annotations

from typing import Final

from pelton.api import ApiError, StreamConfig, api_error
from pelton.api.defaults import DUPLICATE_WINDOW
from pelton.api.times import SECOND

_NO_ROLLUPS: Final = "cannot be set if roll-ups are disabled"


def _invalid(text: str, stream: str) -> ApiError:
    return api_error("JSStreamInvalidConfigF", stream=stream, err=text)


def check_time(config: StreamConfig) -> None:
    """Raise ApiError if a resolved configuration contradicts itself."""
    if config.subject_delete_marker_ttl.ns < 0:
        raise _invalid("subject delete marker TTL must not be negative", config.name)
    if 0 < config.subject_delete_marker_ttl.ns < SECOND:
        raise _invalid("subject delete marker TTL must be at least 1 second", config.name)
    if config.mirror is not None and config.subject_delete_marker_ttl:
        raise _invalid("subject delete markers forbidden on mirrors", config.name)
    if not config.allow_msg_schedules:
        return
    if config.discard == "new":
        raise _invalid("message scheduling cannot use discard new", config.name)
    if config.mirror is not None:
        raise api_error("JSMirrorWithMsgSchedulesErr", stream=config.name)
    if config.sources:
        raise api_error("JSSourceWithMsgSchedulesErr", stream=config.name)


def check_time_pedantic(config: StreamConfig) -> None:
    """Raise ApiError if a requested configuration leaves something to be completed."""
    if config.mirror is None and not config.duplicate_window.ns and 0 < config.max_age.ns < DUPLICATE_WINDOW.ns:
        text = "duplicate window cannot be bigger than max age"
        raise api_error("JSPedanticErrF", stream=config.name, err=text)
    if config.subject_delete_marker_ttl.ns >= SECOND:
        if not config.allow_msg_ttl:
            raise _invalid("subject delete marker cannot be set if message TTLs are disabled", config.name)
        if not config.allow_rollup_hdrs:
            raise _invalid(f"subject delete marker {_NO_ROLLUPS}", config.name)
    if config.allow_msg_schedules and config.discard != "new" and not config.allow_rollup_hdrs:
        raise _invalid(f"message scheduling {_NO_ROLLUPS}", config.name)
