"""Which stream configurations make sense, and which changes of one are allowed. Pure.

Codes and texts are nats-server's where it has them (10052 carries a free text). What this engine cannot do
yet is refused by name rather than ignored: a setting that is accepted is honoured (but ``storage``: a
file keeps all its streams).
"""

from __future__ import annotations

from typing import Any, Final

from pelton.api import ApiError, ConfigError, StreamConfig, api_error
from pelton.streams.mappings import check_mappings
from pelton.subjects import is_filter, is_subset, overlaps

_NAME_LIMIT: Final = 255
_NOT_IN_NAMES: Final = frozenset(" \t\r\n.*>/\\")
_PLAIN: Final = StreamConfig()
_DESCRIPTION_LIMIT: Final = 4096
_API_SPACES: Final = ("$JS.>", "$JSC.>", "$NRG.>")
_API_EVENTS: Final = "$JS.EVENT.>"
_SYSTEM_SPACE: Final = "$SYS.>"
_ACCOUNT_EVENTS: Final = "$SYS.ACCOUNT.>"

# Fields that only their default value is honoured of.
_UNSUPPORTED: Final = (
    "no_ack",
    "template_owner",
    "mirror",
    "sources",
    "mirror_direct",
    "sealed",
    "deny_delete",
    "deny_purge",
    "allow_rollup_hdrs",
    "allow_msg_ttl",
    "subject_delete_marker_ttl",
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
    "persist_mode",
    "first_seq",
    "compression",
    "placement",
)


def invalid(text: str, stream: str) -> ApiError:
    """Return the error for a configuration that contradicts itself (10052)."""
    return api_error("JSStreamInvalidConfigF", stream=stream, err=text)


def check_stream(config: StreamConfig) -> None:
    """Raise ApiError or ConfigError where a resolved configuration cannot be."""
    check_stream_name(config.name)
    _check_supported(config)
    if len(config.description) > _DESCRIPTION_LIMIT:
        raise invalid(f"stream description is too long, maximum allowed is {_DESCRIPTION_LIMIT}", config.name)
    _check_subjects(config)
    if config.max_age and config.max_age < 100_000_000:
        raise invalid("max age needs to be >= 100ms", config.name)
    if config.duplicate_window < 0:
        raise invalid("duplicates window can not be negative", config.name)
    if config.max_age and config.duplicate_window > config.max_age:
        raise invalid("duplicates window can not be larger then max age", config.name)
    if config.duplicate_window and config.duplicate_window < 100_000_000:
        raise invalid("duplicates window needs to be >= 100ms", config.name)
    if config.discard_new_per_subject:
        if config.discard != "new":
            raise invalid("discard new per subject requires discard new policy to be set", config.name)
        if config.max_msgs_per_subject <= 0:
            raise invalid("discard new per subject requires max msgs per subject > 0", config.name)
    check_mappings(config)


def check_stream_name(name: str) -> None:
    """Raise ApiError (10052, 10128) for a name that no stream can have."""
    if any(char in name for char in "/\\"):
        raise api_error("JSStreamNameContainsPathSeparatorsErr", stream=name)
    if not name or any(char in _NOT_IN_NAMES for char in name) or not name.isprintable():
        raise invalid("stream name is required and can not contain '.', '*', '>'", name)
    if len(name.encode()) > _NAME_LIMIT:
        raise invalid(f"stream name is too long, maximum allowed is {_NAME_LIMIT}", name)


def _check_supported(config: StreamConfig) -> None:
    if config.num_replicas > 1:
        raise ConfigError(
            f"stream {config.name!r}: num_replicas is {config.num_replicas}, but an embedded store keeps one copy: "
            "leave it at 1 here, replication lives on a NATS cluster (pelton.open('nats://...'))"
        )
    for field in _UNSUPPORTED:
        value: Any = getattr(config, field)
        if value != getattr(_PLAIN, field):
            raise ConfigError(f"stream {config.name!r}: the embedded engine does not support {field!r}; leave it out")


def _check_subjects(config: StreamConfig) -> None:
    seen: list[str] = []
    for subject in config.subjects:
        if not is_filter(subject):
            raise invalid("invalid subject", config.name)
        _check_reserved(subject, config.name)
        for other in seen:
            if overlaps(subject, other):
                raise invalid(f'subject "{subject}" overlaps with "{other}"', config.name)
        seen.append(subject)


def _check_reserved(subject: str, stream: str) -> None:
    """Refuse what requests and the server's own messages travel on; its events may be kept."""
    if subject == ">":
        raise invalid("capturing all subjects requires no-ack to be true", stream)
    if any(overlaps(subject, space) for space in _API_SPACES) and not is_subset(subject, _API_EVENTS):
        raise invalid("subjects that overlap with jetstream api require no-ack to be true", stream)
    if overlaps(subject, _SYSTEM_SPACE) and not is_subset(subject, _ACCOUNT_EVENTS):
        raise invalid("subjects that overlap with system api require no-ack to be true", stream)


def check_update(old: StreamConfig, new: StreamConfig) -> None:
    """Raise ApiError where a stream cannot be changed from ``old`` to ``new``."""
    check_stream(new)
    if old.storage != new.storage:
        raise invalid("stream configuration update can not change storage type", new.name)
    if old.retention != new.retention and "workqueue" in (old.retention, new.retention):
        raise invalid("stream configuration update can not change retention policy to/from workqueue", new.name)
