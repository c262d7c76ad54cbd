"""Checks arguments at the public API: errors name the argument, its owner, and what to give instead.

`of` names the object that a call is about, such as ``stream 'orders'``, for the message alone. Type checkers find most
of this beforehand; at run time a wrong type would otherwise surface somewhere inside, or be stored.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from pelton.api.errors import ConfigError
from pelton.api.requests import Request
from pelton.api.times import dec_hook, enc_hook

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping)
# Values that JSON would silently turn into text or numbers.
_KEPT = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID)
_SURROGATES = re.compile("[\ud800-\udfff]")
_ADVICE = {str: "encode text, with .encode()", type(None): "leave it out for an empty payload, or give b''"}


def check_text(of: str, name: str, value: object) -> None:
    """Raise ConfigError unless the value is text that can be encoded."""
    if not isinstance(value, str):
        raise ConfigError(f"{of}: {name} is {value!r}: give text (str)")
    if not value.isascii() and _SURROGATES.search(value):
        raise ConfigError(f"{of}: {name} is {value!r}: it holds a lone surrogate, which has no UTF-8 form")


def check_whole(of: str, name: str, value: object, least: int | None = 0) -> None:
    """Raise ConfigError unless the value is a whole number, at least `least` (None: any)."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f", {least} or more"
        raise ConfigError(f"{of}: {name} is {value!r}: give a whole number{bound}")


def check_instance(of: str, name: str, value: object, kind: type | tuple[type, ...], remedy: str) -> None:
    """Raise ConfigError unless the value has this type; `remedy` says what to give."""
    if not isinstance(value, kind):
        raise ConfigError(f"{of}: {name} is {value!r}: {remedy}")


def check_callback(of: str, name: str, value: object) -> None:
    """Raise ConfigError unless the value is callable; None means no callback."""
    if value is not None and not callable(value):
        raise ConfigError(f"{of}: {name} is {value!r}: give a function, or leave it out")


def path_of(of: str, value: object) -> str:
    """Return the path of a file as text. Raises `ConfigError` for anything else."""
    check_instance(of, "the path", value, (str, bytes, os.PathLike), "give text or a pathlib.Path")
    path = os.fsdecode(cast(os.PathLike[str], value))
    if not path or "\0" in path:
        raise ConfigError(f"{of}: the path is {value!r}, and no file has this name: give another one")
    check_text(of, "the path", path)
    return path


def names_of_streams(of: str, value: Iterable[str] | None) -> list[str] | None:
    """Return the names of streams in a list; None stands for all. Raises `ConfigError`."""
    if value is None:
        return None
    names = items_of(of, "streams", value, "names of streams")
    for name in names:
        check_text(of, "a stream's name", name)
    return names


def check_known(of: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown names, suggesting the nearest known one."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{of} has no option {name!r}: {nearest(name, known, 'known')}")


def nearest(name: str, known: Collection[str], what: str) -> str:
    """Return the advice for an unknown name: the known one that is most like it, or all of them."""
    # A program without a mistake does not load it.
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{what} are {', '.join(sorted(known))}"


def items_of(of: str, name: str, value: Iterable[T], what: str) -> list[T]:
    """Return the items of a list or another iterable, except of text, bytes and mappings. Raises `ConfigError`."""
    if type(value) is not list and (isinstance(value, _NO_LISTS) or not isinstance(value, Iterable)):
        raise ConfigError(f"{of}: {name} is {value!r}: give a list of {what}")
    return list(value)


def texts_of(of: str, name: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Return a mapping of text to text; empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(text, str) for key, text in value.items()
    ):
        raise ConfigError(f"{of}: {name} is {value!r}: give a dict of texts to texts")
    return dict(value)


def message_of(subject: object, data: object) -> tuple[str, bytes]:
    """Return a subject and a payload that can be published; bytes-like data is copied.

    Called if a fast check has found something else than str and bytes. Raises `ConfigError`.
    """
    if not isinstance(subject, str):
        raise ConfigError(f"a message cannot be published to {subject!r}: a subject is text, such as 'orders.eu.1'")
    if isinstance(data, bytearray | memoryview):
        return subject, bytes(data)
    if not isinstance(data, bytes):
        advice = _ADVICE.get(type(data), "encode it first, for example with json.dumps(...).encode()")
        raise ConfigError(f"publish to {subject!r}: the payload is {type(data).__name__}, not bytes: {advice}")
    return subject, data


def check_fields(of: str, struct: msgspec.Struct) -> None:
    """Refuse a struct with a field that does not have its declared type. Raises `ConfigError`."""
    try:
        as_declared(struct)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{of}: {sentence(error)}") from None


def check_types(request: Request[Any]) -> None:
    """Refuse a request with a field that does not have its declared type. Raises `ConfigError`."""
    try:
        as_declared(request)
    except UnicodeEncodeError as error:
        # msgspec failed to format its own error, which contains the value.
        raise ConfigError(f"{_about(request)}{error.object!r} holds a lone surrogate and has no UTF-8 form") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{_about(request)}{sentence(error)}") from None


def as_declared(struct: S) -> S:
    """Return a struct with its fields converted to their declared types, as if decoded from JSON.

    Raises `msgspec.ValidationError`, or TypeError for a value that JSON cannot hold.
    """
    plain = msgspec.to_builtins(struct, builtin_types=_KEPT, enc_hook=enc_hook)
    return msgspec.convert(plain, type(struct), dec_hook=dec_hook)


def sentence(error: Exception) -> str:
    """Return msgspec's "Expected X, got Y - at `$.a.b[0]`" with the field in front."""
    text, _, place = str(error).partition(" - at ")
    field = re.sub(r"\[\.\.\.\]|[`$]", "", place).lstrip(".")
    return f"{field}: {text[:1].lower()}{text[1:]}" if field else text


def _about(request: Request[Any]) -> str:
    named = zip(("stream", "consumer"), request._subject_fields, strict=False)
    values = ((what, getattr(request, field)) for what, field in named)
    text = ", ".join(f"{what} {value!r}" for what, value in values if isinstance(value, str))
    return text and f"{text}: "
