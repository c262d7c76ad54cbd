"""The typed arguments of a job: checked and encoded as it is enqueued, decoded as it runs. Pure.

Arguments travel as a JSON object by parameter name, so that a refactored function still reads old jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from pelton.api import ConfigError, JobArgumentsError
from pelton.api.json_values import UNREADABLE, to_json
from pelton.queue.define.codec import ResultCodec, bent
from pelton.queue.define.job_codec import JobCodec, decode_each, encode_each

T = TypeVar("T")

_OPTIONS: Final = frozenset({"key", "idempotency_key"})


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
        return self._encoded(self._named(args, kwargs), self._struct, self._decode)

    def encode_known(
        self, args: Sequence[Any], kwargs: dict[str, Any], find: Callable[[Any], T | None]
    ) -> tuple[bytes, dict[str, T]]:
        """Return the arguments that are known now as JSON, and by name what ``find`` returns for those that are not.

        Raises JobArgumentsError.
        """
        named = self._named(args, kwargs)
        later = {name: found for name, value in named.items() if (found := find(value)) is not None}
        if not later:
            return self._encoded(named, self._struct, self._decode), later
        known = {name: value for name, value in named.items() if name not in later}
        names = tuple(known)
        if (struct := self._partial.get(names)) is None:
            kinds = {name: self._kinds[name] for name in names} if self.codec is None else {}
            struct = self._partial[names] = _struct(self._job, kinds, {})
        return self._encoded(known, struct, msgspec.json.Decoder(struct).decode), later

    def _encoded(
        self, named: dict[str, Any], struct: type[msgspec.Struct], decode: Callable[[bytes], msgspec.Struct]
    ) -> bytes:
        if self.codec is not None:
            try:
                return encode_each(self.codec, named, self._kinds)
            except Exception as error:  # a codec is the program's own
                raise JobArgumentsError(self._job, f"{type(error).__name__}: {error}") from error
        try:
            encoded = to_json(named)
            decoded = decode(encoded)
            for name, value in named.items():
                if getattr(decoded, name) != value and (why := bent(named, struct)):
                    raise JobArgumentsError(self._job, why)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobArgumentsError(self._job, str(error)) from None
        return encoded

    def _named(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
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
    found = [name for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, RunContext)]
    if len(found) > 1:
        raise ConfigError(f"job {job!r}: only one parameter can be the JobContext")
    return found[0] if found else ""


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
