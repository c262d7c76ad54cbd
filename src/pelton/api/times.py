"""Times, durations and waits: how configurations and the wire hold them, and the texts that Go reads and writes.

**Time stamps as the wire carries them: RFC 3339 text, UTC, up to nine digits of a second.** Inside Pelton an instant is
an ``int``: nanoseconds since the Unix epoch. Text appears only on structs that travel. Like in Go's ``RFC3339Nano`` the
fraction has no trailing zeros, so that our replies look like the reference server's. No clock is read here.

**Durations: how configurations hold them, and the texts that Go reads and writes.** Users give seconds or a
`timedelta`, the wire counts nanoseconds. Between them is one type, `Duration`. It is no number, so that neither can be
mistaken for the other: ``Duration(30)`` takes seconds, ``Duration.of_ns(...)`` nanoseconds, and ``.seconds`` and
``.ns`` read them. Fields annotated with it accept what users give (`HasDurations` converts it); decoders make it from
the wire's integers (`dec_hook`), encoders turn it back (`enc_hook`).

NATS also carries durations as texts like ``1h30m`` in headers (``Nats-TTL``, ``Nats-Schedule``).

**How long to wait before trying again: exponential, capped, and jittered downwards.** Jitter spreads callers that
failed together. It only ever shortens a wait, so `cap` is a true upper bound.

**Two kinds of defaults, as on the wire.** Go marks most JSON fields ``omitempty`` and some not: a reply always contains
``max_msgs: -1`` but omits an empty ``description``. Our structs are declared with ``omit_defaults=True``; a field
declared ``= shown(value)`` is written even when it holds its default, every other field is omitted then.
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, get_type_hints

import msgspec

from pelton.api.errors import ConfigError

Seconds = float | timedelta
"""A duration, as users give it."""
SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

NEVER: Final = (1 << 63) - 1
"""A time that never comes."""

ZERO_TIME: Final = "0001-01-01T00:00:00Z"
"""How the wire says "never": Go's zero time."""
TIME_FIELDS: Final = frozenset({"opt_start_time", "pause_until"})
"""The fields of configurations that are points in time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHAPE = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def rfc3339(ns: int) -> str:
    """Return the text of an instant given in nanoseconds since the epoch; years 1 to 9999, else `ConfigError`."""
    seconds, fraction = divmod(ns, SECOND)
    try:
        text = _text_of(seconds)
    except OverflowError:
        raise ConfigError(f"{ns} ns since 1970 is outside the years 1 to 9999: pass another time") from None
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


# What is written or read together is often of one second.
@lru_cache(maxsize=1024)
def _text_of(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def parse_rfc3339(text: str) -> int:
    """Return the nanoseconds since the epoch of RFC 3339 text with any offset; `ConfigError` if it is invalid."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise _not_a_time(text)
    fraction = found[3] or ""
    try:
        seconds = _seconds_at(found[1], found[2], found[4], found[5], found[6])
    except ValueError:
        raise _not_a_time(text) from None
    return seconds * SECOND + int(fraction.ljust(9, "0"))


@lru_cache(maxsize=1024)
def _seconds_at(day: str, clock: str, sign: str | None, hours: str, minutes: str) -> int:
    since = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=_zone(sign, hours, minutes)) - _EPOCH
    return since.days * 86_400 + since.seconds


def datetime_ns(moment: datetime) -> int:
    """Return the nanoseconds since the epoch of an aware datetime; refuse a naive one, whose zone would be a guess."""
    if moment.utcoffset() is None:
        raise ConfigError(f"{moment.isoformat()} has no time zone: add tzinfo=timezone.utc, or your own zone")
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _zone(sign: str | None, hours: str, minutes: str) -> timezone:
    if sign is None:
        return UTC
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if sign == "-" else offset)


def _not_a_time(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no RFC 3339 time: write it like 2026-01-02T03:04:05.123456789Z")


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
        return duration_of("duration", value)

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


def duration_of(name: str, value: object) -> Duration:
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
            items = [duration_of(where, item) for item in ((value,) if is_one else _several(where, value))]
            taken = items[0] if is_one else tuple(items)
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


class _Chance(Protocol):
    def random(self) -> float:
        """Return a number from 0 to 1, 1 excluded."""


class Backoff(msgspec.Struct, frozen=True):
    """A retry schedule: the first wait is `base` seconds, each `factor` times the one before, at most `cap` seconds.

    `jitter` is the share of a wait left to chance.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        """Raise ConfigError for a schedule that would shrink, go backwards or never wait."""
        for name in ("base", "factor", "cap", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"backoff: {name} is {value!r}; give a number")
        if not (0 < self.base <= self.cap < math.inf):
            raise ConfigError(
                f"backoff: base is {self.base!r} and cap {self.cap!r}; they need 0 < base <= cap, in seconds"
            )
        if not (1 <= self.factor < math.inf):
            raise ConfigError(f"backoff: factor is {self.factor!r}; it must be 1 or more, or waits would shrink")
        if not (0 <= self.jitter <= 1):
            raise ConfigError(f"backoff: jitter is {self.jitter!r}; it is a share from 0 to 1")

    def delay(self, attempt: int, rnd: _Chance) -> float:
        """Seconds to wait after failed attempt number `attempt` (the first is 1).

        Raises ValueError when `attempt` is below 1.
        """
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1: {attempt}")
        return self._full(attempt) * (1.0 - self.jitter * rnd.random())

    def _full(self, attempt: int) -> float:
        try:
            return min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:  # a job that has failed a thousand times is long past any cap
            return self.cap


# --- two kinds of defaults

T = TypeVar("T")


def always(value: T) -> T:
    """Declare a default that is written to JSON nevertheless; `value` must be immutable."""
    # msgspec omits a default by identity; the result of a factory is never identical to a default.
    return msgspec.field(default_factory=lambda: value)
