"""Values of programs as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no JSON, do not fit, are no UTF-8 or are nested too deep."""

_encode: Final = msgspec.json.Encoder().encode


def to_json(value: object) -> bytes:
    """Return a value as JSON.

    Raises ValueError for NaN and infinities, which JSON has no form for, and what the encoder raises.
    """
    encoded = _encode(value)
    # The encoder writes null for them.
    if b"null" in encoded and (found := _not_finite(msgspec.to_builtins(value, enc_hook=_raw))) is not None:
        raise ValueError(f"JSON has no {found}")
    return encoded


def _not_finite(value: Any) -> float | None:
    if isinstance(value, float):
        return None if isfinite(value) else value
    if isinstance(value, Mapping):
        value = value.values()
    elif isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    return next((found for part in value if (found := _not_finite(part)) is not None), None)


def _raw(value: object) -> None:
    # Only what is JSON already is left: the rest was encoded.
    assert isinstance(value, msgspec.Raw)
