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
from pelton.queue.define.codec import ResultCodec, bent

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

    def __init__(self, job: str, function: Callable[..., Any]) -> None:
        self._job = job
        hints = _hints(function, job)
        self.context = _context_parameter(hints, job)
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name != self.context]
        self._names = tuple(parameter.name for parameter in parameters)
        self._struct = _struct(job, hints, parameters)
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._signature = signature.replace(parameters=parameters)
        self._positional = all(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self.results = ResultCodec(job, hints.get("return", Any))

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return arguments as JSON, checked against the function's annotations. Raises JobArgumentsError."""
        if not kwargs and self._positional and len(args) == len(self._names):
            named: dict[str, Any] = dict(zip(self._names, args, strict=True))
        else:
            try:
                named = self._signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise JobArgumentsError(self._job, str(error)) from None
        try:
            encoded = _encode(named)
            decoded = self._decode(encoded)
            for name, value in named.items():
                if getattr(decoded, name) != value and (why := bent(named, self._struct)):
                    raise JobArgumentsError(self._job, why)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobArgumentsError(self._job, str(error)) from None
        return encoded

    def decode(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Return the arguments of a stored job by name. Raises JobArgumentsError."""
        try:
            decoded = self._decode(raw)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise JobArgumentsError(self._job, str(error)) from None
        return {name: getattr(decoded, name) for name in self._names}


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


def _struct(job: str, hints: dict[str, Any], parameters: Sequence[inspect.Parameter]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"job {job!r}: {parameter.name!r} can only be given by position; arguments travel by name"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"job {job!r}: '*{parameter.name}' has no fixed name; give each argument a parameter")
        if parameter.name in _OPTIONS:
            raise ConfigError(f"job {job!r}: {parameter.name!r} is an option of enqueue; rename the parameter")
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # A factory, because msgspec refuses mutable defaults; the value itself is only ever encoded or read.
            fields.append((parameter.name, hint, msgspec.field(default_factory=partial(_same, parameter.default))))
    try:
        struct = msgspec.defstruct(f"{job}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)
    except TypeError as error:
        raise ConfigError(f"job {job!r}: a parameter's type can't be stored as JSON ({error})") from None
    return struct


def _same(value: T) -> T:
    return value
