"""Names of buckets and keys, and the streams and subjects behind them (ADR-8)."""

from __future__ import annotations

import re
from typing import Final

from pelton.api import ConfigError, StreamConfig
from pelton.api.errors import brief

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
    """Return the subjects of a filter of keys in the bucket of a stream."""
    return f"{_SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}.{key_filter}"


def all_subjects(bucket: str) -> str:
    """Return the subjects that a bucket's stream takes."""
    return f"{_SUBJECT_PREFIX}{bucket}.>"
