"""Names and settings of buckets, and the streams and subjects that implement them (ADR-8)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec

from pelton.api import ConfigError, Placement, Republish, StreamConfig, StreamSource
from pelton.api.arguments import check_instance, check_known, check_whole, items_of, texts_of
from pelton.api.build import change_fields
from pelton.api.config import Storage
from pelton.api.errors import brief
from pelton.api.times import ZERO, Duration, Seconds, duration_of

STREAM_PREFIX: Final = "KV_"
_SUBJECT_PREFIX: Final = "$KV."
_BUCKET: Final = re.compile(r"[a-zA-Z0-9_-]+")
_KEY: Final = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
_FILTER: Final = re.compile(r"[-/_=.a-zA-Z0-9*]*>?")
# With a prefix it names a stream, which may have 255 bytes.
_LONGEST_BUCKET: Final = 251
# With its bucket, and what locks add, it forms a subject, which may have 3,072 bytes.
_LONGEST_KEY: Final = 2560


def check_bucket(bucket: str) -> str:
    """Return the checked name of a bucket, of keys or of objects. Raises ConfigError."""
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{bucket!r} cannot name a bucket: use letters, digits, - and _")
    _check_length("name a bucket", bucket, _LONGEST_BUCKET)
    return bucket


def stream_of(bucket: str) -> str:
    """Return the name of a bucket's stream. Raises ConfigError."""
    return STREAM_PREFIX + check_bucket(bucket)


def check_key(key: str) -> str:
    """Return a key, checked to be writable. Raises ConfigError."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigError(
            f"{key!r} cannot be a key: use letters, digits and - / _ = . without a dot at its ends or two in a row"
        )
    _check_length("be a key", key, _LONGEST_KEY)
    return key


def check_filter(text: str) -> str:
    """Return a filter of keys: a key in which ``*`` stands for one part, and ``>`` at the end for all that follow."""
    if not isinstance(text, str) or not _FILTER.fullmatch(text) or not text or not _is_dotted_well(text):
        raise ConfigError(f"{text!r} filters no keys: write a key, with * for one part of it or > for all that follow")
    _check_length("filter keys", text, _LONGEST_KEY)
    return text


def _check_length(role: str, text: str, longest: int) -> None:
    if len(text) > longest:
        raise ConfigError(f"{brief(text)} cannot {role}: it has {len(text)} bytes, and {longest} are the most")


def _is_dotted_well(text: str) -> bool:
    return not (text.startswith(".") or text.endswith(".") or ".." in text)


def key_prefix(config: StreamConfig) -> str:
    """Return the prefix of a bucket's keys: a mirror keeps its origin's subjects."""
    origin = config.mirror.name if config.mirror is not None else config.name
    return key_subjects(origin, "")


def write_prefix(config: StreamConfig, domain_prefix: str) -> str:
    """Return the prefix that a bucket's keys are written under.

    A mirror is written at its origin. An origin in another domain (``domain_prefix`` is that of the connection)
    is reached under the prefix of its domain's API.
    """
    if config.mirror is not None and config.mirror.external is not None:
        domain_prefix = f"{config.mirror.external.api}."
    return domain_prefix + key_prefix(config)


def key_subjects(stream: str, key_filter: str) -> str:
    return f"{_SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}.{key_filter}"


def all_subjects(bucket: str) -> str:
    """Return the subjects that a bucket's stream takes."""
    return f"{_SUBJECT_PREFIX}{bucket}.>"


# --- settings of a bucket, and the stream configuration that implements them (ADR-8)

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
    """Settings of a bucket; durations are seconds or ``timedelta``."""

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
    return change_fields(base, fields, f"bucket {bucket!r}")


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
    age = duration_of(f"bucket {bucket!r}: ttl", value)
    return {"max_age": age, "duplicate_window": min(age, _DUPLICATES) if age else _DUPLICATES}


def _limit_marker_ttl(bucket: str, value: Any) -> dict[str, Any]:
    marker = duration_of(f"bucket {bucket!r}: limit_marker_ttl", value)
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
    return {"sources": [_with_keys_of(bucket, _source(bucket, one)) for one in given]}


def _with_keys_of(bucket: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return a source whose keys become this bucket's."""
    keys, name = source.pop("keys") or (">",), source["name"]
    if not source.get("subject_transforms") and not source.get("filter_subject"):
        source["subject_transforms"] = [
            {"src": key_subjects(name, key), "dest": key_subjects(stream_of(bucket), _renumber(key))} for key in keys
        ]
    return source


def _renumber(key_filter: str) -> str:
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
