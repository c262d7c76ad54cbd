"""Durations: how configurations hold them, and the texts that Go reads and writes.

Design: users give seconds or a `timedelta`, the wire counts nanoseconds. Between them is one type, `Duration`. It
is no number, so that neither can be mistaken for the other: ``Duration(30)`` takes seconds, ``Duration.of_ns(...)``
nanoseconds, and ``.seconds`` and ``.ns`` read them. Fields annotated with it accept what users give
(`HasDurations` converts it); decoders make it from the wire's integers (`dec_hook`), encoders turn it back
(`enc_hook`).

NATS also carries durations as texts like ``1h30m`` in headers (``Nats-TTL``, ``Nats-Schedule``).
"""

import math
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast, get_type_hints

import msgspec

from pelton.api.errors import ConfigError
from pelton.api.times import SECOND, Seconds

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,  # the Greek letter, beside the micro sign
    "ms": 1_000_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PART: Final = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LIMIT: Final = 1 << 63
# In seconds, less than the limit.
_CENTURY: Final = 3_155_760_000
_MILLISECOND: Final = 1_000_000
_UNIT: Final = "give seconds, such as 30 for half a minute, or a timedelta"


class Duration:
    """A length of time: ``Duration(30)`` is half a minute, exact to the nanosecond.

    Equal to the same number of seconds and to the same `timedelta`; as a key of a dictionary or set it is found only by
    durations. Ordered among durations and timedeltas; compare ``.seconds`` with a number. Zero is false. Raises
    `ConfigError` for an invalid value.
    """

    __slots__ = ("ns",)

    ns: int
    """Nanoseconds: the unit on the wire."""

    def __new__(cls, value: "Seconds | Duration" = 0) -> "Duration":
        """Create a duration from seconds, a `timedelta` or a duration."""
        return given("duration", value)

    @staticmethod
    def of_ns(ns: int) -> "Duration":
        """Return a duration of this many nanoseconds."""
        # msgspec leaves a default out of JSON if it is this very object.
        return _make(ns) if ns else ZERO

    @property
    def seconds(self) -> float:
        """The number of seconds."""
        return self.ns / SECOND

    def to_timedelta(self) -> timedelta:
        """The same as a `timedelta`, cut to microseconds."""
        return timedelta(microseconds=self.ns // 1000)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Duration cannot be changed: create another one")

    def __reduce__(self) -> tuple[Any, ...]:
        return Duration.of_ns, (self.ns,)

    def __bool__(self) -> bool:
        return self.ns != 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Duration | timedelta):
            return self.ns == _exact(other)
        if isinstance(other, int | float) and math.isfinite(other):
            return self.ns == _exact(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __lt__(self, other: "Duration | timedelta") -> bool:
        return self.ns < _comparable(other)

    def __le__(self, other: "Duration | timedelta") -> bool:
        return self.ns <= _comparable(other)

    def __gt__(self, other: "Duration | timedelta") -> bool:
        return self.ns > _comparable(other)

    def __ge__(self, other: "Duration | timedelta") -> bool:
        return self.ns >= _comparable(other)

    def __repr__(self) -> str:
        number = self.ns // SECOND if self.ns % SECOND == 0 else self.seconds
        plain = self.ns == 0 or (self.ns >= _MILLISECOND and _exact(number) == self.ns)
        return f"Duration({number!r})" if plain else f"Duration.of_ns({self.ns})"

    def __str__(self) -> str:
        return format_duration(self.ns)

    if TYPE_CHECKING:
        # For type checkers: a field of a struct is set to what users give, and read as a Duration.
        def __get__(self, instance: object, owner: type[object] | None = None) -> "Duration": ...
        def __set__(self, instance: object, value: "Seconds | Duration") -> None: ...


if TYPE_CHECKING:

    class Durations:
        """Several durations, as a field of a struct."""

        def __get__(self, instance: object, owner: type[object] | None = None) -> tuple[Duration, ...]: ...
        def __set__(self, instance: object, value: Sequence[Seconds | Duration]) -> None: ...

    NO_DURATIONS: Durations
else:
    Durations = tuple[Duration, ...]
    NO_DURATIONS = ()


def _make(ns: int) -> Duration:
    made = object.__new__(Duration)
    object.__setattr__(made, "ns", ns)
    return made


ZERO: Final = _make(0)


def given(name: str, value: object) -> Duration:
    """Return the duration that a user gives as seconds, `timedelta` or `Duration`.

    Raises `ConfigError` that begins with ``name``; also for less than a millisecond, a likely mistake of units. A
    `Duration` is returned unchanged.
    """
    if isinstance(value, Duration):
        return value
    ns = duration_ns(name, value)
    if 0 < ns < _MILLISECOND:
        raise ConfigError(f"{name} is {value!r}, less than a millisecond: {_UNIT}")
    return Duration.of_ns(ns)


def duration_ns(name: str, value: object) -> int:
    """Return the nanoseconds of what a user gives as seconds, `timedelta` or `Duration`.

    Raises `ConfigError` that begins with ``name``.
    """
    # What nearly all arguments are.
    if (type(value) is float or type(value) is int) and 0 <= value < _CENTURY:
        return round(value * SECOND)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta | Duration) or not _is_finite(value):
        raise ConfigError(f"{name} is {value!r}: give seconds as a number, or a timedelta")
    ns = _exact(value)
    if ns < 0:
        raise ConfigError(f"{name} is {value!r}: it must be 0 or more")
    if ns >= _LIMIT:
        raise ConfigError(f"{name} is {value!r}: it must be less than 292 years, in seconds (not in nanoseconds)")
    return ns


def _is_finite(value: Seconds | Duration) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _exact(value: Seconds | Duration) -> int:
    if isinstance(value, Duration):
        return value.ns
    if isinstance(value, timedelta):
        return ((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds) * 1000
    return value * SECOND if isinstance(value, int) else round(value * SECOND)


def _comparable(other: object) -> int:
    if isinstance(other, Duration | timedelta):
        return _exact(other)
    raise TypeError(f"a Duration cannot be compared with {other!r}: compare its .seconds with a number of seconds")


# --- fields of structs


class HasDurations:
    """A mixin for structs with fields of the types `Duration` and `Durations`: converts its arguments."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, is_one in _fields_of(type(self)):
            value = getattr(self, name)
            if type(value) is Duration or value == ():
                continue
            where = f"{type(self).__name__}: {name}"
            taken = given(where, value) if is_one else tuple(given(where, item) for item in _several(where, value))
            msgspec.structs.force_setattr(cast(msgspec.Struct, self), name, taken)


_known_fields: dict[type, list[tuple[str, bool]]] = {}


def _fields_of(kind: type) -> list[tuple[str, bool]]:
    """Return the fields of a struct that hold durations, and whether they hold a single one."""
    found = _known_fields.get(kind)
    if found is None:
        hints = get_type_hints(kind)
        found = [(name, hint is Duration) for name, hint in hints.items() if hint in (Duration, Durations)]
        _known_fields[kind] = found
    return found


def _several(where: str, value: object) -> Sequence[object]:
    if isinstance(value, list | tuple):
        return value
    raise ConfigError(f"{where} is {value!r}: give a list of durations in seconds")


def dec_hook(kind: type, value: Any) -> Any:
    """Turn nanoseconds into a `Duration`, for decoders of structs with durations."""
    if kind is Duration:
        if type(value) is int:
            return Duration.of_ns(value)
        raise TypeError(f"Expected `int`, got `{type(value).__name__}`")
    raise NotImplementedError


def enc_hook(value: Any) -> Any:
    """Turn a `Duration` into nanoseconds, for encoders of structs with durations."""
    if type(value) is Duration:
        return value.ns
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


# --- texts of Go


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a text like ``-1h2.5m``; ValueError if it is invalid, or longer than 292 years."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total = position = 0
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None or not (found[1] or found[2]):
            raise ValueError(f"{text!r} is no duration: write it like 1h30m, 90s or 500ms")
        total += _part(found[1], found[2] or "", _UNITS[found[3]])
        position = found.end()
    if not rest or total >= _LIMIT:
        raise ValueError(f"{text!r} is no duration below 292 years: write it like 1h30m, 90s or 500ms")
    return sign * total


def _part(whole: str, fraction: str, unit: int) -> int:
    return int(whole or "0") * unit + int(fraction or "0") * unit // int(10 ** len(fraction))


def format_duration(ns: int) -> str:
    """Return a duration as Go prints it: ``1m40s``, ``1.5s``, ``250ms``."""
    if ns < 0:
        return f"-{format_duration(-ns)}"
    if ns < SECOND:
        unit = "ns" if ns < 1_000 else "µs" if ns < 1_000_000 else "ms"
        return f"{_decimal(ns, _UNITS[unit])}{unit}" if ns else "0s"
    minutes, rest = divmod(ns, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
