"""Settings of a bucket, and the stream configuration that implements them (ADR-8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec

from pelton.api import ConfigError, Placement, Republish, StreamConfig, StreamSource
from pelton.api.arguments import check_instance, check_known, check_whole, items_of, texts_of
from pelton.api.build import changed
from pelton.api.config import Storage
from pelton.api.durations import ZERO, Duration, given
from pelton.api.times import Seconds
from pelton.buckets.naming import STREAM_PREFIX, all_subjects, check_filter, key_subjects, stream_of

BucketOrigin = str | StreamSource | Mapping[str, Any]
"""A bucket to take keys from: its name, or NATS's fields of a source.

In addition: ``keys``, one or several filters of keys; ``domain``, the bucket's domain, in place of ``external``.
"""
_LONGEST_HISTORY: Final = 64
_DUPLICATES: Final = Duration(120)
# A stream's limit counts headers, which Pelton adds, and values as a codec makes them. So it leaves room for these, and
# the limit of values is kept beside it.
_VALUE_LIMIT: Final = "pelton.max_value_size"
_HEADERS: Final = 4096
_LARGEST: Final = (1 << 31) - 1


class BucketSettings(TypedDict, total=False):
    """Settings of a bucket: how many revisions of a key it keeps (1 to 64), and for how long (``ttl``);

    ``limit_marker_ttl`` allows keys their own time to live, and is how long the markers of expired keys are kept for
    watchers; ``compression``, limits, and where a cluster keeps it. Durations are seconds or ``timedelta``. ``mirror``
    names a bucket of which this one is a copy; ``sources`` name buckets whose keys this one also includes.
    """

    history: int
    """How many revisions of a key are kept, 1 to 64 (default 1)."""
    ttl: Seconds
    """How long a value is kept, in seconds."""
    limit_marker_ttl: Seconds
    """How long the marker of an expired key is kept, in seconds; allows `ttl=` of single keys."""
    max_value_size: int
    """The largest value, in bytes, as you give it: before a codec."""
    max_bytes: int
    """The largest bucket, in bytes."""
    storage: Storage
    """In a `file` (default) or in `memory`, on servers."""
    replicas: int
    """How many servers of a cluster keep it (default 1)."""
    description: str
    """A text for people."""
    compression: bool
    """Whether values are compressed."""
    placement: Placement | Mapping[str, Any] | None
    """Where a cluster keeps it."""
    republish: Republish | Mapping[str, Any] | None
    """Publish each change once more, under another subject."""
    mirror: BucketOrigin | None
    """The bucket of which this one is a copy."""
    sources: Sequence[BucketOrigin]
    """Buckets whose keys this one includes."""
    metadata: Mapping[str, str] | None
    """Texts for programs."""


def new_config(bucket: str, settings: Mapping[str, Any]) -> StreamConfig:
    """Return the stream of a new bucket. Raises ConfigError."""
    base = StreamConfig(
        name=stream_of(bucket),
        subjects=(all_subjects(bucket),),
        max_msgs_per_subject=1,
        discard="new",
        duplicate_window=_DUPLICATES,
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
    )
    return changed_config(base, bucket, settings)


def changed_config(base: StreamConfig, bucket: str, settings: Mapping[str, Any]) -> StreamConfig:
    """Return the stream of a bucket with some settings changed. Raises ConfigError."""
    check_known(f"bucket {bucket!r}", settings, _SETTINGS)
    fields: dict[str, Any] = {}
    # In the table's order: a mirror has no duplicate window, whatever its time to live.
    for name, fields_of in _SETTINGS.items():
        if name in settings:
            fields |= fields_of(bucket, settings[name])
    is_kept = "max_msg_size" not in fields and _VALUE_LIMIT in base.metadata
    limit = value_limit(base) if is_kept else fields.get("max_msg_size", -1)
    texts = dict(fields["metadata"]) if "metadata" in fields else metadata_of(base)
    if limit > 0:
        fields |= {"max_msg_size": _with_room(limit), "metadata": texts | {_VALUE_LIMIT: str(limit)}}
    elif "max_msg_size" in fields:
        fields["metadata"] = texts
    return changed(base, fields, f"bucket {bucket!r}")


def value_limit(config: StreamConfig) -> int:
    """Return the largest size of a value, -1 for any."""
    kept = config.metadata.get(_VALUE_LIMIT, "")
    # Other clients know only the stream's limit.
    return int(kept) if kept.isdecimal() and config.max_msg_size == _with_room(int(kept)) else config.max_msg_size


def metadata_of(config: StreamConfig) -> dict[str, str]:
    """Return the texts that a user has given a bucket."""
    return {name: text for name, text in config.metadata.items() if name != _VALUE_LIMIT}


def as_others_limit(config: StreamConfig) -> StreamConfig:
    """Return the stream that another client makes for the same settings."""
    return msgspec.structs.replace(config, max_msg_size=value_limit(config), metadata=metadata_of(config))


def _with_room(limit: int) -> int:
    return min(limit + limit // 3 + _HEADERS, _LARGEST)


def _history(bucket: str, value: Any) -> dict[str, Any]:
    if type(value) is not int or not 1 <= value <= _LONGEST_HISTORY:
        raise ConfigError(f"bucket {bucket!r}: history is {value!r}, it can be 1 to {_LONGEST_HISTORY}")
    return {"max_msgs_per_subject": value}


def _ttl(bucket: str, value: Any) -> dict[str, Any]:
    age = given(f"bucket {bucket!r}: ttl", value)
    return {"max_age": age, "duplicate_window": min(age, _DUPLICATES) if age else _DUPLICATES}


def _limit_marker_ttl(bucket: str, value: Any) -> dict[str, Any]:
    marker = given(f"bucket {bucket!r}: limit_marker_ttl", value)
    # A server lets you enable times to live, but never disable them again.
    return {"subject_delete_marker_ttl": marker} | ({"allow_msg_ttl": True} if marker else {})


def _mirror(bucket: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"mirror": None, "subjects": (all_subjects(bucket),), "mirror_direct": False}
    source = _source(bucket, value)
    keys = source.pop("keys")
    if len(keys) == 1:
        source["filter_subject"] = key_subjects(source["name"], keys[0])
    elif keys:
        source["subject_transforms"] = [{"src": key_subjects(source["name"], key)} for key in keys]
    # A mirror takes only its origin's messages, and may answer direct gets for it.
    return {"mirror": source, "subjects": (), "mirror_direct": True, "duplicate_window": ZERO}


def _sources(bucket: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str | Mapping | StreamSource):
        value = [value]
    given = items_of(f"bucket {bucket!r}", "sources", value, "names of buckets")
    return {"sources": [_renamed(bucket, _source(bucket, one)) for one in given]}


def _renamed(bucket: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return a source whose keys become this bucket's."""
    keys, name = source.pop("keys") or (">",), source["name"]
    if not source.get("subject_transforms") and not source.get("filter_subject"):
        source["subject_transforms"] = [
            {"src": key_subjects(name, key), "dest": key_subjects(stream_of(bucket), _numbered(key))} for key in keys
        ]
    return source


def _numbered(key_filter: str) -> str:
    """Return a filter as a destination: each ``*`` becomes a reference to its position."""
    parts, count = key_filter.split("."), 0
    for index, part in enumerate(parts):
        if part == "*":
            count += 1
            parts[index] = f"{{{{wildcard({count})}}}}"
    return ".".join(parts)


def _source(bucket: str, value: BucketOrigin) -> dict[str, Any]:
    """Return a source in NATS's fields, and ``keys``, its filters of keys."""
    if isinstance(value, str):
        value = {"name": value}
    check_instance(
        f"bucket {bucket!r}", "a source", value, (StreamSource, Mapping), "give a bucket's name, or a dict of fields"
    )
    fields = msgspec.to_builtins(value) if isinstance(value, StreamSource) else dict(value)
    name, domain, keys = fields.get("name"), fields.pop("domain", ""), fields.pop("keys", ())
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{value!r} names no bucket: give its name, or fields with a name")
    if not name.startswith(STREAM_PREFIX):
        fields["name"] = stream_of(name)
    if domain:
        fields["external"] = {"api": f"$JS.{domain}.API"}
    filters = [keys] if isinstance(keys, str) else items_of(f"bucket {bucket!r}", "keys", keys, "filters of keys")
    return fields | {"keys": [check_filter(key) for key in filters]}


def _same(field: str) -> Callable[[str, Any], dict[str, Any]]:
    return lambda _bucket, value: {field: value}


def _whole(setting: str, field: str) -> Callable[[str, Any], dict[str, Any]]:
    def fields_of(bucket: str, value: Any) -> dict[str, Any]:
        check_whole(f"bucket {bucket!r}", setting, value, -1)
        return {field: value}

    return fields_of


_SETTINGS: Final[dict[str, Callable[[str, Any], dict[str, Any]]]] = {
    "history": _history,
    "ttl": _ttl,
    "limit_marker_ttl": _limit_marker_ttl,
    "max_value_size": _whole("max_value_size", "max_msg_size"),
    "max_bytes": _same("max_bytes"),
    "storage": _same("storage"),
    "replicas": _whole("replicas", "num_replicas"),
    "description": _same("description"),
    "compression": lambda _bucket, value: {"compression": "s2" if value else "none"},
    "placement": _same("placement"),
    "republish": _same("republish"),
    "mirror": _mirror,
    "sources": _sources,
    "metadata": lambda bucket, value: {"metadata": texts_of(f"bucket {bucket!r}", "metadata", value)},
}
