"""Decodes payloads: one that does not parse becomes null with the reason beside it, and is never dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from pelton.api import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Decode = Literal["json", "msgpack", "text"]
Decoder = Callable[[bytes], Any]
_REASON_LENGTH: Final = 200
_PLAIN: Final[dict[str, Any]] = {
    "string": str,
    "boolean": bool,
    "bigint": int,
    "int": int,
    "smallint": int,
    "tinyint": int,
    "double": float,
    "float": float,
    "binary": bytes,
    "timestamp": datetime,
    "date": date,
}
_BITS: Final = {"bigint": 63, "int": 31, "smallint": 15, "tinyint": 7}


def decoder(decode: Decode, kind: DataType) -> Decoder:
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


def _python_type(kind: DataType) -> Any:
    """Return the Python type that msgspec validates a value against."""
    name = kind.typeName()
    if name == "struct":
        fields = [(field.name, _python_type(field.dataType) | None, None) for field in kind.fields]  # type: ignore[attr-defined]  # a StructType
        encoded = {f"f{number}": field[0] for number, field in enumerate(fields)}
        renamed = [(ours, field[1], None) for ours, field in zip(encoded, fields, strict=True)]
        return msgspec.defstruct("Value", renamed, rename=encoded)
    if name == "array":
        return list[_python_type(kind.elementType) | None]  # type: ignore[attr-defined,misc]  # an ArrayType
    if name == "map":
        return dict[str, _python_type(kind.valueType) | None]  # type: ignore[attr-defined,misc]  # a MapType
    if name == "decimal":
        return Decimal
    simple = kind.simpleString()
    if simple not in _PLAIN:
        raise ConfigError(f"a payload cannot be decoded to {simple}: decode to a string, and cast it")
    if simple in _BITS:
        from typing import Annotated

        limit = 1 << _BITS[simple]
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    return _PLAIN[simple]
