"""Builds configurations and headers from a user's values: seconds, `timedelta`, `datetime`, dicts, lists.

`stream_config("orders", subjects=["orders.>"], max_age=3600)` becomes a `StreamConfig`. A misspelt field or a wrong
type is refused here, with an error that names the nearest field; what only a server can check, such as overlapping
subjects, is checked there.

**Finds unknown keys in nested plain data before it becomes structs.** Replies may hold fields of newer servers, so the
structs themselves ignore unknown fields. Users' arguments and clients' requests are checked here, as the reference
server does.

**Builds the headers about time from a user's values: seconds, `timedelta`, `datetime`.** ``Nats-TTL`` (ADR-43) and
``Nats-Schedule`` with its companions (ADR-51). What only a stream can check, such as a cron expression or whether it
takes the target, is checked there.
"""

import re
import types
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from pelton.api import headers
from pelton.api.arguments import as_declared, check_instance, nearest, sentence
from pelton.api.config import ConsumerConfig, StreamConfig
from pelton.api.errors import ConfigError
from pelton.api.times import (
    SECOND,
    TIME_FIELDS,
    Duration,
    Seconds,
    datetime_ns,
    duration_ns,
    duration_of,
    format_duration,
    parse_rfc3339,
    rfc3339,
)

# Evaluating the annotations each time would take longer than the rest of creating a stream.
_hints_of: Final = cache(get_type_hints)


def unknown_key(kind: type[msgspec.Struct], data: Mapping[str, Any]) -> tuple[str, frozenset[str]] | None:
    """Return the first key of `data` that struct `kind`, or one nested in it, does not have, and those it has."""
    hints = _hints_of(kind)
    known = frozenset(kind.__struct_fields__)
    for key, value in data.items():
        if key not in known:
            return key, known
        nested = struct_in(hints[key])
        found = _within(nested, value) if nested else None
        if found:
            return f"{key}.{found[0]}", found[1]
    return None


def struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """Return the struct type in an annotation such as ``Struct | None`` or ``tuple[Struct, ...]``."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) in (tuple, Union, types.UnionType):
        return next((found for arg in get_args(hint) if (found := struct_in(arg))), None)
    return None


def _within(kind: type[msgspec.Struct], value: Any) -> tuple[str, frozenset[str]] | None:
    if isinstance(value, Mapping):
        return unknown_key(kind, value)
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := _within(kind, item))), None)
    return None


C = TypeVar("C", StreamConfig, ConsumerConfig)

DURATIONS: Final = frozenset(
    {
        "max_age",
        "duplicate_window",
        "subject_delete_marker_ttl",
        "ack_wait",
        "backoff",
        "inactive_threshold",
        "idle_heartbeat",
        "max_expires",
        "priority_timeout",
    }
)

_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")
_TOKEN = re.compile(r"[^\s.*>\x00-\x1f\x7f\ud800-\udfff]+")


def stream_config(name: str | StreamConfig, /, **fields: Any) -> StreamConfig:
    """Return a `StreamConfig` made from keyword arguments, or a given one with these fields changed.

    Durations are seconds or `timedelta`, nested structs may be dicts. Raises `ConfigError`.
    """
    if isinstance(name, StreamConfig):
        return change_fields(name, fields, f"stream {name.name!r}")
    check_name("stream", name)
    return change_fields(StreamConfig(name=name), fields, f"stream {name!r}")


def consumer_config(config: ConsumerConfig | None = None, /, **fields: Any) -> ConsumerConfig:
    """Return a `ConsumerConfig` made from keyword arguments, or a given one with these fields changed.

    Durations are seconds or `timedelta`. Raises `ConfigError`.
    """
    base = ConsumerConfig() if config is None else config
    check_instance("create_consumer", "the configuration", base, ConsumerConfig, "give a ConsumerConfig, or its fields")
    name = fields.get("durable_name") or fields.get("name") or base.durable_name or base.name
    if name:
        check_name("consumer", name)
    return change_fields(base, fields, f"consumer {name!r}" if name else "consumer")


def check_name(what: str, name: object) -> None:
    """Refuse a name that is not one token of an API subject and one part of a path (ADR-6)."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a {what}: use text without spaces and any of . * > / \\")


STREAM_NAME_RULE: Final = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
"""The server's words for a name that no stream can have."""


def check_token(what: str, name: str) -> None:
    """Refuse a name that is not one token of an API subject."""
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a {what}: use text without spaces and any of . * >")


def change_fields(base: C, fields: dict[str, Any], what: str) -> C:
    """Return a configuration with some fields changed; `what` names it in a `ConfigError`."""
    kind = type(base)
    _refuse_unknown(kind, fields, what)
    plain = {key: _plain(key, value, what) for key, value in fields.items()}
    try:
        checked = msgspec.convert(plain, kind)
        # A struct given by the user may hold anything, too.
        made = as_declared(msgspec.structs.replace(base, **{key: getattr(checked, key) for key in fields}))
        return made if fields else base
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what}: {error.object!r} is not a text: it holds a lone surrogate") from None
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{what}: {sentence(error)}") from None


def _refuse_unknown(kind: type[msgspec.Struct], fields: dict[str, Any], what: str) -> None:
    found = unknown_key(kind, fields)
    if found is None:
        return
    path, known = found
    advice = nearest(path.rpartition(".")[2], known, "known fields")
    raise ConfigError(f"{what}: there is no field {path!r}; {advice}")


def _plain(key: str, value: Any, what: str) -> Any:
    """Return the value as a struct holds it, nested values too; structs pass through."""
    if key in DURATIONS:
        if isinstance(value, list | tuple):
            return [duration_of(f"{what}: {key}", item) for item in value]
        return duration_of(f"{what}: {key}", value)
    if key in TIME_FIELDS:
        return _time(key, value, what)
    if isinstance(value, Mapping):
        return {inner: _plain(inner, item, what) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain("", item, what) for item in value]
    return value


def seconds_to_ns(name: str, value: Seconds | Duration, of: str = "argument") -> int:
    """Return the nanoseconds of an argument given in seconds or as a `timedelta`.

    `of` names what it is an argument of. Raises `ConfigError`.
    """
    return duration_ns(f"{of}: {name}", value)


def time_text(name: str, value: datetime | str | None, of: str = "argument") -> str:
    """Return an aware datetime, or RFC 3339 text, as RFC 3339 text; empty for None. Raises `ConfigError`."""
    return "" if value is None else _time(name, value, of)


def _time(key: str, value: Any, what: str) -> str:
    try:
        if isinstance(value, datetime):
            return rfc3339(datetime_ns(value))
        if isinstance(value, str):
            return rfc3339(parse_rfc3339(value)) if value else ""
    except ConfigError as error:
        raise ConfigError(f"{what}: {key}: {error}") from None
    raise ConfigError(f"{what}: {key} is {value!r}: give an aware datetime, or RFC 3339 text")


NEVER = "never"


def ttl_text(ttl: Seconds | str) -> str:
    """Return the value of ``Nats-TTL``: whole seconds, at least one, or ``"never"``. Raises `ConfigError`."""
    if isinstance(ttl, str):
        if ttl != NEVER:
            raise ConfigError(f"ttl is {ttl!r}: give seconds as a number, a timedelta, or 'never'")
        return NEVER
    return format_duration(_at_least_a_second("ttl", ttl) // SECOND * SECOND)


def schedule_text(
    now: int,
    *,
    at: datetime | None = None,
    delay: Seconds | None = None,
    every: Seconds | None = None,
    cron: str | None = None,
) -> str:
    """Return the value of ``Nats-Schedule``; give exactly one of the four; ``delay`` counts from ``now`` (nanoseconds).

    Raises `ConfigError`.
    """
    given = {"at": at, "delay": delay, "every": every, "cron": cron}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(
            f"a schedule takes one of at, delay, every and cron, not {', '.join(named) or 'none of them'}"
        )
    if at is not None:
        return f"@at {time_text('at', at, 'schedule')}"
    if delay is not None:
        return f"@at {rfc3339(now + seconds_to_ns('delay', delay, 'schedule'))}"
    if every is not None:
        return f"@every {format_duration(_at_least_a_second('every', every))}"
    if not isinstance(cron, str):
        raise ConfigError(
            f"schedule: cron is {cron!r}: give text, six fields, seconds first, like '0 30 5 * * mon-fri'"
        )
    return cron


def schedule_headers(
    schedule: str,
    target: str,
    time_zone: str | None,
    ttl: Seconds | str | None,
    source: str | None,
    replace: bool,
    delay: Seconds | None = None,
) -> dict[str, str | None]:
    """Return the headers of a schedule; None for those not given. ``delay``: its time was given as one."""
    if not schedule:
        raise ConfigError("cron is empty: write six fields, seconds first, like '0 30 5 * * mon-fri'")
    return {
        headers.SCHEDULE: schedule,
        headers.SCHEDULE_TARGET: target,
        headers.DELAY: None if delay is None else format_duration(seconds_to_ns("delay", delay, "schedule")),
        headers.SCHEDULE_TIME_ZONE: time_zone,
        headers.SCHEDULE_TTL: None if ttl is None else ttl_text(ttl),
        headers.SCHEDULE_SOURCE: source,
        headers.SCHEDULE_ROLLUP: "sub" if replace else None,
    }


def _at_least_a_second(name: str, value: Seconds) -> int:
    ns = seconds_to_ns(name, value)
    if ns < SECOND:
        raise ConfigError(f"argument: {name} is {value!r}: at least one second")
    return ns
