"""The typed arguments of a job, checked and encoded as it is enqueued, decoded as it runs, and its result. Pure.

Arguments travel as a JSON object by parameter name, so that a refactored function still reads old jobs. JSON encodes
types it has no form for as text: bytes, dates, UUIDs, decimals, and every key of an object. If text is declared, such a
value would pass every check, and decode to a different one: so it is refused.

What a codec of the program's own has encoded stands in the JSON as base64, so that names and options are read by every
program, whether it has the codec or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, Protocol, TypeVar, get_type_hints
from uuid import UUID

import msgspec

from pelton.api import ConfigError, JobArgumentsError, JobResultError
from pelton.api.json_values import UNREADABLE, to_json
from pelton.queue.model.states import NOTHING


class JobCodec(Protocol):
    """Turns values into bytes and back, for arguments and results: ``pelton.Jobs(codec=...)``."""

    def encode(self, value: Any, /) -> bytes:
        """Return a value as bytes; may raise any error."""
        ...

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the value of bytes; ``kind`` is the type that the function declares, Any if it declares none.

        Raise an error if the value is of another type.
        """
        ...


def checked_codec(codec: object) -> JobCodec | None:
    """Return a codec if it has both methods. Raises ConfigError."""
    if codec is None:
        return None
    for name in ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise ConfigError(f"codec is {codec!r}: give an object with encode(value) and decode(data, type)")
    return codec  # type: ignore[return-value]  # it was looked at


def encoded_with(codec: JobCodec, value: object) -> bytes:
    """Return a value as a JSON text that holds what the codec makes of it. Raises what the codec raises."""
    data = codec.encode(value)
    if not isinstance(data, bytes):
        raise TypeError(f"{codec!r} encoded to {type(data).__name__}, not to bytes")
    return msgspec.json.encode(data)


def decoded_with(codec: JobCodec, encoded: msgspec.Raw | bytes, kind: Any) -> Any:
    """Return a value that :func:`encoded_with` has encoded. Raises what the codec raises."""
    return codec.decode(msgspec.json.decode(encoded, type=bytes), kind)


def encode_each(codec: JobCodec, named: dict[str, Any], kinds: dict[str, Any]) -> bytes:
    """Return arguments as a JSON object, each checked by decoding it again. Raises what the codec raises."""
    encoded = {name: msgspec.Raw(encoded_with(codec, value)) for name, value in named.items()}
    for name, raw in encoded.items():
        decoded_with(codec, raw, kinds.get(name, Any))
    return msgspec.json.encode(encoded)


def decode_each(
    codec: JobCodec, raw: msgspec.Raw, kinds: dict[str, Any], defaults: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Return arguments by name. Raises TypeError for one too many or too few, and what the codec raises."""
    given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if unknown := given.keys() - kinds.keys():
        raise TypeError(f"there is no parameter {min(unknown)!r}")
    if missing := kinds.keys() - given.keys() - defaults.keys():
        raise TypeError(f"there is no argument for {min(missing)!r}")
    return {
        name: decoded_with(codec, given[name], kind) if name in given else defaults[name]()
        for name, kind in kinds.items()
    }


_PLAIN: Final = (str, int, float, bool, type(None))
# Text for bytes would be read as base64. For the others, text is their own form: 2026-01-02 for a date.
_BYTES: Final = (bytes, bytearray)
_WRITTEN_AS_TEXT: Final = (*_BYTES, datetime, date, time, timedelta, UUID, Decimal)


def bent(value: object, kind: Any) -> str:
    """Return why a value that JSON can hold would decode to a different one under the type ``kind``, or empty."""
    try:
        msgspec.convert(msgspec.to_builtins(value, builtin_types=_WRITTEN_AS_TEXT), kind, builtin_types=_BYTES)
    except msgspec.ValidationError as error:
        return str(error)
    except TypeError:
        # Already JSON: msgspec.Raw.
        pass
    return ""


def encoded_result(job: str, result: object) -> msgspec.Raw:
    """Return a job's result as JSON. Raises JobResultError."""
    if result is None:
        return NOTHING
    try:
        return msgspec.Raw(to_json(result))
    except Exception as error:  # a result's own code may run, and raise anything
        raise JobResultError(job, f"{type(error).__name__}: {error}") from error


class ResultCodec:
    """Results of one job, whose function declares ``kind``; Any if nothing is declared."""

    def __init__(self, job: str, kind: Any, codec: JobCodec | None = None) -> None:
        self._job = job
        self._codec = codec
        self._kind = kind
        try:
            self._decode = None if kind in (Any, object) else msgspec.json.Decoder(kind).decode
        except TypeError:
            # A type that JSON does not know; the returned value may still be storable.
            self._decode = None

    def encode(self, result: object) -> msgspec.Raw:
        """Return a result as JSON. Raises JobResultError if JSON cannot hold it, or would change it."""
        if self._codec is not None:
            try:
                return NOTHING if result is None else msgspec.Raw(encoded_with(self._codec, result))
            except Exception as error:  # a codec is the program's own
                raise JobResultError(self._job, f"{type(error).__name__}: {error}") from error
        encoded = encoded_result(self._job, result)
        is_plain = type(result) is self._kind and self._kind in _PLAIN
        if self._decode is None or is_plain or not (why := bent(result, self._kind)):
            return encoded
        try:
            self._decode(encoded)
        except msgspec.DecodeError:
            # The annotation is of another type altogether, so the two cannot be confused.
            return encoded
        raise JobResultError(self._job, why)

    def decode(self, encoded: msgspec.Raw | bytes) -> object:
        """Return a result as its declared type. Raises JobResultError if it is of another one."""
        if self._codec is not None and bytes(encoded) != bytes(NOTHING):
            try:
                return decoded_with(self._codec, encoded, self._kind)
            except Exception as error:  # a codec is the program's own
                raise JobResultError(self._job, f"{type(error).__name__}: {error}") from error
        if self._decode is None:
            return msgspec.json.decode(encoded)
        try:
            return self._decode(encoded)
        except msgspec.ValidationError as error:
            raise JobResultError(self._job, str(error)) from error


T = TypeVar("T")

_OPTIONS: Final = frozenset({"key", "idempotency_key"})
_encode: Final = msgspec.json.Encoder().encode


class RunContext:
    """What the worker, and not the caller, passes to a parameter that is annotated with it; ``JobContext`` is one."""

    __slots__ = ()


class JobArguments:
    """The arguments of one job's function. ``context`` names the parameter that the worker fills, or is empty.

    Raises ConfigError for a function whose arguments cannot travel.
    """

    def __init__(self, job: str, function: Callable[..., Any], codec: JobCodec | None = None) -> None:
        self._job = job
        self.codec = codec
        hints = _hints(function, job)
        self.context: str = _context_parameter(hints, job)
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name != self.context]
        self._names = tuple(parameter.name for parameter in parameters)
        _check(job, parameters)
        self._kinds = {name: hints.get(name, Any) for name in self._names}
        self._defaults: dict[str, Callable[[], Any]] = {
            p.name: partial(_same, p.default) for p in parameters if p.default is not p.empty
        }
        self._struct = _struct(job, self._kinds if codec is None else {}, self._defaults)
        # Of some of the arguments alone, by their names.
        self._partial: dict[tuple[str, ...], type[msgspec.Struct]] = {}
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._signature = signature.replace(parameters=parameters)
        self._positional = all(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self.results: ResultCodec = ResultCodec(job, hints.get("return", Any), codec)

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return arguments as JSON, checked against the function's annotations. Raises JobArgumentsError."""
        return self._check_and_encode(self._by_name(args, kwargs), self._struct, self._decode)

    def encode_known(
        self, args: Sequence[Any], kwargs: dict[str, Any], find: Callable[[Any], T | None]
    ) -> tuple[bytes, dict[str, T]]:
        """Return the arguments that are known now as JSON, and by name what ``find`` returns for those that are not.

        Raises JobArgumentsError.
        """
        named = self._by_name(args, kwargs)
        later = {name: later_one for name, value in named.items() if (later_one := find(value)) is not None}
        if not later:
            return self._check_and_encode(named, self._struct, self._decode), later
        known = {name: value for name, value in named.items() if name not in later}
        names = tuple(known)
        if (struct := self._partial.get(names)) is None:
            kinds = {name: self._kinds[name] for name in names} if self.codec is None else {}
            struct = self._partial[names] = _struct(self._job, kinds, {})
        return self._check_and_encode(known, struct, msgspec.json.Decoder(struct).decode), later

    def _check_and_encode(
        self, named: dict[str, Any], struct: type[msgspec.Struct], decode: Callable[[bytes], msgspec.Struct]
    ) -> bytes:
        if self.codec is not None:
            try:
                return encode_each(self.codec, named, self._kinds)
            except Exception as error:  # a codec is the program's own
                raise JobArgumentsError(self._job, f"{type(error).__name__}: {error}") from error
        try:
            encoded = _encode(named)
            if b"null" in encoded:
                encoded = to_json(named)
            decoded = decode(encoded)
            for name, value in named.items():
                if getattr(decoded, name) != value and (why := bent(named, struct)):
                    raise JobArgumentsError(self._job, why)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobArgumentsError(self._job, str(error)) from None
        return encoded

    def _by_name(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not kwargs and self._positional and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise JobArgumentsError(self._job, str(error)) from None

    def decode(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Return the arguments of a stored job by name. Raises JobArgumentsError."""
        if self.codec is not None:
            try:
                return decode_each(self.codec, raw, self._kinds, self._defaults)
            except Exception as error:  # a codec is the program's own
                raise JobArgumentsError(self._job, f"{type(error).__name__}: {error}", is_stored=True) from error
        try:
            decoded = self._decode(raw)
        except UNREADABLE as error:
            raise JobArgumentsError(self._job, str(error), is_stored=True) from None
        return msgspec.structs.asdict(decoded)


def _context_parameter(hints: dict[str, Any], job: str) -> str:
    contexts = [name for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, RunContext)]
    if len(contexts) > 1:
        raise ConfigError(f"job {job!r}: only one parameter can be the JobContext")
    return contexts[0] if contexts else ""


def _hints(function: Callable[..., Any], job: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(f"job {job!r}: its annotations can't be read ({error})") from None


def _check(job: str, parameters: Sequence[inspect.Parameter]) -> None:
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"job {job!r}: {parameter.name!r} can only be given by position; arguments travel by name"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"job {job!r}: '*{parameter.name}' has no fixed name; give each argument a parameter")
        if parameter.name in _OPTIONS:
            raise ConfigError(f"job {job!r}: {parameter.name!r} is an option of enqueue; rename the parameter")


def _struct(job: str, kinds: dict[str, Any], defaults: dict[str, Callable[[], Any]]) -> type[msgspec.Struct]:
    fields: list[Any] = [
        # A factory, because msgspec refuses mutable defaults; the value itself is only ever encoded or read.
        (name, kind, msgspec.field(default_factory=defaults[name])) if name in defaults else (name, kind)
        for name, kind in kinds.items()
    ]
    try:
        struct = msgspec.defstruct(f"{job}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)
    except TypeError as error:
        raise ConfigError(f"job {job!r}: a parameter's type can't be stored as JSON ({error})") from None
    return struct


def _same(value: T) -> T:
    return value
