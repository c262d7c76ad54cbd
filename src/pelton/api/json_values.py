"""JSON: values of programs, numbers of any size, and what clients send, read as nats-server reads it. Pure.

**Reads the JSON of clients as nats-server does, which is written in Go.** `null` leaves a field at its zero value,
names match whatever their case, bytes that are no UTF-8 are replaced, a number with a fraction or an exponent is no
integer, and integers have the size of the server's fields. The texts of errors are the server's, which clients show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from pelton.api.errors import ConfigError
from pelton.api.times import TIME_FIELDS, Duration, dec_hook, parse_rfc3339

if TYPE_CHECKING:
    # Loaded for what msgspec cannot read.
    from json import JSONDecoder

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


# --- whole numbers of any size as text: ``str`` and ``int`` of Python refuse more than 4,300 digits

_GO_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]*)", re.ASCII)
_INT64: Final = range(-(1 << 63), 1 << 63)


class _Counter(msgspec.Struct):
    val: str


def go_integer(text: str) -> int:
    """Return a number as Go's ``strconv.Atoi`` reads it. Raises ValueError in its words."""
    found = _GO_INTEGER.fullmatch(text)
    if found is None or not text[-1:].isdigit():
        raise ValueError("invalid syntax")
    # Twenty digits are out of range already.
    value = int(f"{found[1]}0{found[2][:20]}")
    if value not in _INT64:
        raise ValueError("value out of range")
    return value


def is_level(required: str | None, level: int) -> bool:
    """Whether an API ``level`` is that which a header requires (ADR-44); an empty text requires none."""
    try:
        return not required or go_integer(required) <= level
    except ValueError:
        return False


def to_digits(value: int) -> str:
    """Return the digits of a number. Raises ConfigError unless it is an ``int``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{value!r} cannot be added to a counter: give an int")
    return format(Decimal(value), "f")


def from_digits(text: str) -> int:
    """Return the number that digits stand for. Raises ConfigError."""
    try:
        return int(Decimal(text))
    except (InvalidOperation, ValueError, OverflowError):
        raise ConfigError(f"{text[:60]!r} is no whole number") from None


def counter_value(data: bytes) -> int:
    """Return the total that a counter's message carries (ADR-49). Raises ConfigError."""
    try:
        return from_digits(msgspec.json.decode(data, type=_Counter).val)
    except UNREADABLE:
        raise ConfigError(f"{data[:60]!r} is no counter: is allow_msg_counter set on its stream?") from None


S = TypeVar("S", bound=msgspec.Struct)

_SPACE: Final = " \t\r\n"
_LONE: Final = re.compile("[\ud800-\udfff]")
_SIZES: Final = {
    "int": _INT64,
    "int64": _INT64,
    "int32": range(-(1 << 31), 1 << 31),
    "uint64": range(1 << 64),
    "time.Duration": _INT64,
}
_INTEGERS: Final = {
    "seq": "uint64",
    "keep": "uint64",
    "up_to_seq": "uint64",
    "opt_start_seq": "uint64",
    "first_seq": "uint64",
    "rate_limit_bps": "uint64",
    "max_msg_size": "int32",
    "max_msgs": "int64",
    "_WireStream.max_bytes": "int64",
    "max_msgs_per_subject": "int64",
    "min_pending": "int64",
    "min_ack_pending": "int64",
    "expires": "time.Duration",
    "idle_heartbeat": "time.Duration",
}
# No sequence is larger, in a store.
_LARGEST: Final = (1 << 63) - 1
_TIMES: Final = TIME_FIELDS | {"start_time", "up_to_time"}
_GO_NAMES: Final = {
    "SubjectTransform": "SubjectTransformConfig",
    "Republish": "RePublish",
    "External": "ExternalStream",
    "ConsumerLimits": "StreamConsumerLimits",
}
_REFUSALS: Final = {
    "action": "unknown consumer action: {}",
    "priority_policy": "unknown priority policy: {}",
    "compression": "unknown compression algorithm",
}


class GoJsonError(ValueError):
    """What a client sent is no JSON, or does not fit."""


class _EndError(GoJsonError):
    """A JSON value has no end."""


class _Text(str):
    """A number that is no integer, as it was written."""


# A Python integer would lose its sign.
_MINUS_ZERO: Final = _Text("-0")


class _Field(msgspec.Struct, frozen=True):
    name: str
    hint: Any
    go: str


class StructReader(Generic[S]):
    """Reads structs of one kind; unknown fields are ignored."""

    def __init__(self, kind: type[S], root: str = "") -> None:
        self._kind = kind
        self._root = root
        self._decode = msgspec.json.Decoder(_plain(kind)).decode

    def __call__(self, body: bytes, before: S | None = None) -> S:
        """Return a struct from one JSON value; fields that it leaves out are as ``before``. Raises GoJsonError."""
        try:
            if before is None and _MINUS_ZERO.encode() not in body:
                return msgspec.convert(self._decode(body), self._kind, from_attributes=True)
        except UNREADABLE:
            pass
        kept = {} if before is None else msgspec.to_builtins(before)
        try:
            return msgspec.convert(kept | read_object(self._kind, body, self._root), self._kind, dec_hook=dec_hook)
        except msgspec.ValidationError as error:
            raise GoJsonError(str(error)) from None


def _plain(kind: type[S]) -> type[S]:
    """A struct with the same fields that can be decoded only from what Go and msgspec read alike."""
    hints: dict[str, Any] = {
        "time.Time": Annotated[str, msgspec.Meta(pattern="(?!)")],
        "uint64": Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)],
        "int": Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)],
    }
    hints |= {"int64": hints["int"], "time.Duration": hints["int"]}
    known = _fields(kind)
    changed = [
        (one.name, hints[known[one.encode_name].go], one.default)
        for one in msgspec.structs.fields(kind)
        if known[one.encode_name].go in hints
    ]
    made: Any = msgspec.defstruct(
        f"Plain{kind.__name__}", changed, bases=(kind,), kw_only=True, frozen=True, forbid_unknown_fields=True
    )
    return cast(type[S], made)


def read_object(kind: type[msgspec.Struct], body: bytes, root: str) -> dict[str, Any]:
    """Return the fields of one JSON value; unknown ones are ignored. Raises GoJsonError."""
    try:
        values = list(_values(body))
    except _EndError:
        values = []
    except GoJsonError as error:
        raise GoJsonError(str(error).partition(" at offset ")[0]) from None
    if not values:
        raise GoJsonError("unexpected end of JSON input")
    if len(values) > 1:
        raise GoJsonError("invalid character '{' after top-level value")
    return _read(kind, values, root, is_strict=False)


def read_request(kind: type[msgspec.Struct], body: bytes, root: str) -> dict[str, Any]:
    """Return the fields of a request, of which later JSON values change earlier ones; unknown ones are refused.

    Raises GoJsonError. ``root`` is the name of the struct in the server's messages.
    """
    return _read(kind, _values(body), root, is_strict=True)


def _read(kind: type[msgspec.Struct], values: Iterable[Any], root: str, *, is_strict: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in values:
        if value is not None:
            if not isinstance(value, dict):
                raise GoJsonError(f"json: cannot unmarshal {_kind_of(value)} into Go value of type server.{root}")
            found |= _struct(kind, value, root, is_strict)
    return found


# --- JSON

_LITERALS: Final = ("null", "true", "false")


def _values(body: bytes) -> Iterator[Any]:
    """The JSON values of a text, one after the other."""
    from json import JSONDecodeError

    decode = _decoder().raw_decode
    text = body.decode("utf-8", "replace")
    position = _past_space(text, 0)
    while position < len(text):
        try:
            value, position = decode(text, position)
        except JSONDecodeError as error:
            raise _syntax_error(text, error.pos) from None
        except RecursionError:
            raise GoJsonError("exceeded max depth") from None
        yield value
        position = _past_space(text, position)


def _past_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _syntax_error(text: str, position: int) -> GoJsonError:
    position = _past_space(text, position)
    if position >= len(text) or text[position] == '"':
        return _EndError("unexpected EOF")
    for literal in _LITERALS:
        if text[position] == literal[0]:
            same = next((n for n, char in enumerate(literal) if text[position + n : position + n + 1] != char), 0)
            at = position + same
            if at >= len(text):
                return _EndError("unexpected EOF")
            expected = f"in literal {literal} (expecting {literal[same]!r})"
            return GoJsonError(f"invalid character {text[at]!r} {expected} at offset {at + 1}")
    return GoJsonError(f"invalid character {text[position]!r} looking for beginning of value at offset {position + 1}")


def _constant(text: str) -> NoReturn:
    raise GoJsonError(f"invalid character {text[0]!r} looking for beginning of value")


def _integer(text: str) -> Any:
    if text == _MINUS_ZERO:
        return _MINUS_ZERO
    return int(text) if len(text) <= len("-18446744073709551615") else _Text(text)


class _Object(dict[str, Any]):
    """An object with a name that is there twice: each of its values is read."""

    pairs: list[tuple[str, Any]]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        found = _Object(found)
        found.pairs = pairs
    return found


@cache
def _decoder() -> JSONDecoder:
    from json import JSONDecoder

    return JSONDecoder(object_pairs_hook=_object, parse_float=_Text, parse_int=_integer, parse_constant=_constant)


# --- structs


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    """The fields of a struct by their names, and by those in lower case."""
    hints = {name: _bare(hint) for name, hint in get_type_hints(kind).items()}
    found: dict[str, _Field] = {}
    for name, written in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        field = _Field(written, hints[name], _go_type(kind, name, hints[name]))
        found |= {written.lower(): field, written: field}
    return found


def _go_type(kind: type[msgspec.Struct], name: str, hint: Any) -> str:
    if hint is int:
        return _INTEGERS.get(f"{kind.__name__}.{name}") or _INTEGERS.get(name, "int")
    if hint is str:
        return "time.Time" if name in _TIMES else "string"
    if hint is bool:
        return "bool"
    if hint is Duration:
        return "time.Duration"
    if get_origin(hint) is tuple:
        item = _go_type(kind, name, get_args(hint)[0])
        return f"[]*{item}" if item.endswith("StreamSource") else f"[]{item}"
    if get_origin(hint) is dict:
        return "map[string]string"
    nested = _struct_of(hint)
    return "" if nested is None else f"server.{_GO_NAMES.get(nested.__name__, nested.__name__)}"


def _bare(hint: Any) -> Any:
    """A type without the None that it may be as well."""
    return (
        next(one for one in get_args(hint) if one is not NoneType) if get_origin(hint) in (Union, UnionType) else hint
    )


def _struct_of(hint: Any) -> type[msgspec.Struct] | None:
    return hint if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else None


def _struct(kind: type[msgspec.Struct], value: dict[str, Any], path: str, is_strict: bool) -> dict[str, Any]:
    known = _fields(kind)
    found: dict[str, Any] = {}
    for key, item in value.pairs if isinstance(value, _Object) else value.items():
        field = known.get(key) or known.get(key.lower())
        if field is None:
            if is_strict:
                raise GoJsonError(f'json: unknown field "{whole(key)}"')
        elif item is not None or get_origin(field.hint) is Literal:
            found[field.name] = _value(field, item, f"{path}.{field.name}", is_strict)
    return found


def _value(field: _Field, value: Any, path: str, is_strict: bool) -> Any:
    hint, origin = field.hint, get_origin(field.hint)
    if origin is Literal:
        return _choice(field, value)
    if origin is tuple and isinstance(value, list):
        return _items(field, value, path, is_strict)
    if origin is dict and isinstance(value, dict):
        text = _Field(field.name, str, "string")
        items = ((whole(key), item) for key, item in value.items())
        return {key: "" if item is None else _value(text, item, f"{path}.{key}", is_strict) for key, item in items}
    if field.go in _SIZES and type(value) is int:
        return _within_size(field.go, value, path)
    if value is _MINUS_ZERO and field.go in _SIZES and field.go != "uint64":
        return 0
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str) and type(value) is not _Text:
        return _time(value) if field.go == "time.Time" else whole(value)
    nested = _struct_of(hint)
    if nested is not None and isinstance(value, dict):
        return _zeros(nested) | _struct(nested, value, path, is_strict)
    shown = f"number {value}" if field.go in _SIZES and type(value) is _Text else _kind_of(value)
    raise GoJsonError(f"json: cannot unmarshal {shown} into Go struct field {path} of type {field.go}")


def _choice(field: _Field, value: Any) -> Any:
    if value in get_args(field.hint) and (value or field.name != "priority_policy"):
        return value
    if field.name == "compression" and value is not None and (type(value) is _Text or not isinstance(value, str)):
        raise GoJsonError(f"json: cannot unmarshal {_kind_of(value)} into Go value of type string")
    from json import dumps

    written = value if type(value) is _Text else dumps(value, separators=(",", ":"))
    sentence = _REFUSALS.get(field.name)
    raise GoJsonError(sentence.format(written) if sentence else f"can not unmarshal {dumps(written)}")


def _items(field: _Field, values: list[Any], path: str, is_strict: bool) -> list[Any]:
    hint = get_args(field.hint)[0]
    one = _Field(field.name, hint, field.go[2:].lstrip("*"))
    nested = _struct_of(hint)
    zero: Any = _zeros(nested) if nested is not None else 0 if hint is Duration else ""
    found = []
    for number, value in enumerate(values):
        if value is None:
            found.append(zero)
            continue
        try:
            found.append(_value(one, value, f"{path}.{number}", is_strict))
        except GoJsonError as error:
            raise GoJsonError(str(error).replace("into Go struct field", "into", 1)) from None
    return found


def _within_size(go: str, value: int, path: str) -> int:
    if value not in _SIZES[go]:
        raise GoJsonError(f"json: cannot unmarshal number {value} into Go struct field {path} of type {go}")
    return min(value, _LARGEST)


def _time(text: str) -> str:
    try:
        parse_rfc3339(text)
    except ConfigError:
        layout = "2006-01-02T15:04:05Z07:00"
        raise GoJsonError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"') from None
    return text


@cache
def _zeros(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """What the texts are that have no default of ours, if they are left out."""
    return {one.encode_name: "" for one in msgspec.structs.fields(kind) if one.required and one.type is str}


def whole(text: str) -> str:
    """Replace bytes that are no UTF-8, and halves of characters, which JSON can hold and UTF-8 cannot."""
    return _LONE.sub("\ufffd", text)


_SIGNS: Final = dict(zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True))


def quote_text(text: str) -> str:
    """Return a text in quotes, as Go's ``%q`` writes it."""
    return f'"{"".join(map(_sign, text))}"'


def _sign(character: str) -> str:
    if character in _SIGNS:
        return f"\\{_SIGNS[character]}"
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80 or 0xDC80 <= code < 0xDD00:
        # A byte that is no UTF-8, too.
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) or type(value) is _Text:
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
