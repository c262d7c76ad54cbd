"""Names of object stores and objects, and the streams and subjects behind them (ADR-20)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final

from pelton.api import ConfigError
from pelton.api.errors import brief
from pelton.buckets.naming import check_bucket

STREAM_PREFIX: Final = "OBJ_"
# In base64, after the name of its store, it forms a subject, which may have 3,072 bytes.
_LONGEST: Final = 2048


def stream_of(bucket: str) -> str:
    """Return the name of an object store's stream. Raises ConfigError."""
    return STREAM_PREFIX + check_bucket(bucket)


def check_name(name: str) -> str:
    """Return the checked name of an object: any text of 1 to 2,048 bytes. Raises ConfigError."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} cannot name an object: give a text that is not empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{brief(name)} cannot name an object: it holds a lone surrogate, no UTF-8 form") from None
    if size > _LONGEST:
        raise ConfigError(f"{brief(name)} cannot name an object: it has {size} bytes, and {_LONGEST} are the most")
    return name


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of one object's chunks, or of all with ``>``."""
    return f"$O.{bucket}.C.{nuid}"


def meta_subject(bucket: str, name: str) -> str:
    """Return the subject of an object's description."""
    return f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}"


def all_metas(bucket: str) -> str:
    """Return the filter of all descriptions."""
    return f"$O.{bucket}.M.>"
