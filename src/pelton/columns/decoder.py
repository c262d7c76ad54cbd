"""Decodes payloads: one that does not parse becomes null with the reason beside it, and is never dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa

from pelton.api import ConfigError

Decode = Literal["json", "msgpack", "text"]
Decoder = Callable[[bytes], Any]
_REASON_LENGTH: Final = 200
_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], Any], ...]] = (
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_timestamp, datetime),
    (pa.types.is_date32, date),
    (pa.types.is_decimal, Decimal),
)


def decoder(decode: Decode, kind: pa.DataType) -> Decoder:
    """Return a function that decodes a payload to a value of a type, and raises ValueError if it cannot.

    A missing field is null, a field that the type does not have is ignored. Raises ConfigError for a type that no
    payload can be decoded to.
    """
    if decode == "text":
        return lambda data: data.decode()
    expected = _python_type(kind)
    read: Any = (msgspec.json if decode == "json" else msgspec.msgpack).Decoder(expected | None)
    builtins = msgspec.to_builtins
    # Arrow accepts dicts, and plain values of its own types.
    kept = (datetime, date, Decimal, bytes)
    return lambda data: builtins(read.decode(data), builtin_types=kept)


def decoded(read: Decoder, payloads: Sequence[bytes]) -> tuple[list[Any], list[str | None]]:
    """Return the value of each payload, and the error of each that has none."""
    values: list[Any] = []
    errors: list[str | None] = []
    for data in payloads:
        try:
            values.append(read(data))
            errors.append(None)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            values.append(None)
            errors.append(f"{type(error).__name__}: {error}"[:_REASON_LENGTH])
    return values, errors


def _python_type(kind: pa.DataType) -> Any:
    """Return the Python type that msgspec validates a value against."""
    types = pa.types
    if types.is_struct(kind):
        fields = [(field.name, _python_type(field.type) | None, None) for field in kind]
        encoded = {f"f{number}": field[0] for number, field in enumerate(fields)}
        renamed = [(ours, field[1], None) for ours, field in zip(encoded, fields, strict=True)]
        return msgspec.defstruct("Value", renamed, rename=encoded)
    if types.is_list(kind) or types.is_large_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]  # a type that is made here
    if types.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]  # a type that is made here
    if types.is_integer(kind):
        span = 1 << kind.bit_width
        least = -span // 2 if types.is_signed_integer(kind) else 0
        # msgspec's bounds have 64 bits; of larger numbers Arrow says so.
        return Annotated[int, msgspec.Meta(ge=least, le=min(least + span, 1 << 63) - 1)]
    for is_kind, python in _PLAIN:
        if is_kind(kind):
            return python
    raise ConfigError(f"a payload cannot be decoded to {kind}: decode to a string, and cast it")
