"""What users write into ``option(...)``, checked at the door: from texts to one frozen value. Pure.

Spark hands all options on as texts and does not mind their case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pelton.api import ConfigError
from pelton.api.times import parse_rfc3339
from pelton.spark.names import is_meant
from pelton.spark.secrecy import refuse_shown
from pelton.subjects import is_filter

Decode = Literal["json", "msgpack", "text"]
T = TypeVar("T")

_CLUSTER: Final[Mapping[str, str]] = {
    "user": "user",
    "password": "password",
    "token": "token",
    "credentials": "credentials",
    "nkey": "nkey",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
    "tlsFirst": "tls_first",
    "domain": "domain",
    "apiPrefix": "api_prefix",
    "inboxPrefix": "inbox_prefix",
    "patience": "patience",
}
_PLACE: Final = ("path", "servers", "secretKey", "keyFile", *_CLUSTER)
_READING: Final = (
    "stream",
    "subjects",
    "decode",
    "valueSchema",
    "startingSequence",
    "endingSequence",
    "startingTime",
    "endingTime",
    "minPartitions",
    "rowsPerPartition",
    "failOnDataLoss",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "consumer",
)
# What Kafka's users write, lower case, and what it is here.
_KAFKA: Final = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "stream",
    "subscribepattern": "stream",
    "topic": "stream",
    "startingoffsets": "startingSequence",
    "endingoffsets": "endingSequence",
    "startingtimestamp": "startingTime",
    "endingtimestamp": "endingTime",
    "startingoffsetsbytimestamp": "startingTime",
    "endingoffsetsbytimestamp": "endingTime",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "minoffsetspertrigger": "minRowsPerTrigger",
    "maxrecordsperpartition": "rowsPerPartition",
}
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_ROWS_PER_PARTITION: Final = 250_000
_ROWS_PER_TRIGGER: Final = 1_000_000


class Bound(NamedTuple):
    """Where reading begins or ends: a ``sequence``, or a ``time`` in nanoseconds, or an end of the stream."""

    kind: Literal["earliest", "latest", "sequence", "time"]
    value: int = 0


@dataclass(frozen=True)
class Bounds:
    """A bound for every stream, and others for some by name."""

    default: Bound
    streams: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, stream: str) -> Bound:
        """Return the bound of a stream."""
        return self.streams.get(stream, self.default)


@dataclass(frozen=True)
class PlaceOptions:
    """Which store or cluster is meant, and what it takes to open it. Never shown: it may hold secrets."""

    address: str
    is_cluster: bool
    key: str | None = field(default=None, repr=False)
    key_file: str | None = None
    login: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ReadOptions:
    """How to read. ``streams`` are names or patterns with ``*`` and ``?``; delays in seconds; 0 is no limit."""

    place: PlaceOptions
    streams: tuple[str, ...]
    subjects: tuple[str, ...]
    decode: Decode | None
    value_schema: str | None
    start: Bounds
    end: Bounds
    min_partitions: int
    rows_per_partition: int
    fail_on_data_loss: bool
    max_rows: int
    max_bytes: int
    min_rows: int
    max_delay: float
    consumer: str | None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return what was asked for. Raises ConfigError, also for an unknown option."""
    options = _known(given, (*_PLACE, *_READING))
    take = _Taker(options)
    streams = _streams(options)
    return ReadOptions(
        place=_place(options, take),
        streams=streams,
        subjects=_filters(options),
        decode=_decode(options),
        value_schema=options.get("valueSchema"),
        start=_bounds(options, "starting", Bound("earliest"), streams),
        end=_bounds(options, "ending", Bound("latest"), streams),
        min_partitions=take("minPartitions", _positive, 1),
        rows_per_partition=take("rowsPerPartition", _positive, _ROWS_PER_PARTITION),
        fail_on_data_loss=take("failOnDataLoss", _flag, True),
        max_rows=take("maxRowsPerTrigger", _positive, _ROWS_PER_TRIGGER),
        max_bytes=take("maxBytesPerTrigger", _positive, 0),
        min_rows=take("minRowsPerTrigger", _positive, 0),
        max_delay=take("maxTriggerDelay", _seconds, 900.0),
        consumer=options.get("consumer"),
    )


def check_batch(options: ReadOptions) -> None:
    """Raise ConfigError for what only a streaming query can do."""
    if options.consumer is not None:
        raise ConfigError("option consumer follows a streaming query; spark.read takes nothing away: leave it out")


def check_streaming(options: ReadOptions) -> None:
    """Raise ConfigError for what only a batch read can do."""
    if options.end != Bounds(Bound("latest")):
        raise ConfigError("a streaming query has no end: leave endingSequence and endingTime out, or use spark.read")


def place_options(given: Mapping[str, str], others: tuple[str, ...]) -> tuple[PlaceOptions, dict[str, str]]:
    """Return the place that options name, and the options in ``others`` as they are written there.

    For sinks, which have other options than readers. Raises ConfigError for an unknown one.
    """
    options = _known(given, (*_PLACE, *others))
    place = _place(options, _Taker(options))
    return place, {name: value for name, value in options.items() if name in others}


class _Taker:
    """Reads one option after another; a bad value is told with the option's name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, name: str, read: Callable[[str], T], default: T) -> T:
        text = self._options.get(name)
        if text is None:
            return default
        try:
            return read(text.strip())
        except ValueError as error:
            raise ConfigError(f"option {name} is {text!r}: {error}") from None


def _known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the options under the names that we write them with."""
    refuse_shown(given)
    written = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in written:
            raise ConfigError(f"the format pelton has no option {name!r} here{_hint(name.lower(), written)}")
        options[written[name.lower()]] = value
    return options


def _hint(name: str, written: Mapping[str, str]) -> str:
    near = get_close_matches(name, written, n=1)
    meant = _KAFKA.get(name) or (written[near[0]] if near else "")
    return f"; did you mean {meant!r}?" if meant.lower() in written else ""


def _place(options: Mapping[str, str], take: _Taker) -> PlaceOptions:
    path, servers = options.get("path"), options.get("servers")
    if (path is None) == (servers is None):
        raise ConfigError("say where the streams are: option path (a store file) or servers (nats://host:4222), one of")
    login: dict[str, Any] = {ours: options[name] for name, ours in _CLUSTER.items() if name in options}
    if path is not None:
        if login:
            raise ConfigError(f"{', '.join(login)} belong to a cluster; {path!r} is a file: leave them out")
        if "secretKey" in options and "keyFile" in options:
            raise ConfigError("secretKey and keyFile both say what opens the store: keep one")
        return PlaceOptions(path, False, options.get("secretKey"), options.get("keyFile"))
    if "secretKey" in options or "keyFile" in options:
        raise ConfigError(
            "secretKey and keyFile open an encrypted store file; a cluster takes user, token, credentials, nkey"
        )
    for name, read in (("tlsFirst", _flag), ("patience", _seconds)):
        if name in options:
            login[_CLUSTER[name]] = take(name, read, None)
    address = str(servers)
    return PlaceOptions(address if ":/" in address else f"nats://{address}", True, login=login)


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in options.get("stream", "").split(",") if name.strip())
    if not names:
        raise ConfigError("say which stream to read: option stream, several by comma, or a pattern such as orders-*")
    return names


def _filters(options: Mapping[str, str]) -> tuple[str, ...]:
    filters = tuple(text.strip() for text in options.get("subjects", "").split(",") if text.strip())
    for text in filters:
        if not is_filter(text):
            raise ConfigError(
                f"option subjects: {text!r} is no subject filter; write it like orders.eu.> or orders.*.new"
            )
    return filters


def _decode(options: Mapping[str, str]) -> Decode | None:
    text = options.get("decode")
    if text is None or text in ("json", "msgpack", "text"):
        return text  # type: ignore[return-value]  # one of the three
    raise ConfigError(f"option decode is {text!r}: choose json, msgpack or text, or leave it out for the bytes alone")


# --- bounds: a word, a number or a time for all streams, or JSON with one for each


def _bounds(options: Mapping[str, str], side: str, default: Bound, streams: tuple[str, ...]) -> Bounds:
    by_sequence, by_time = options.get(f"{side}Sequence"), options.get(f"{side}Time")
    found = Bounds(default)
    for name, text, read in ((f"{side}Sequence", by_sequence, _sequence), (f"{side}Time", by_time, _time)):
        if text is not None:
            found = _merged(found, _read_bounds(name, text, read, default), default)
    for stream in found.streams:
        if not is_meant(stream, streams):
            raise ConfigError(f"the {side} bounds name {stream!r}, which option stream does not: {', '.join(streams)}")
    return found


def _read_bounds(name: str, text: str, read: Callable[[object], Bound], default: Bound) -> Bounds:
    try:
        if not text.lstrip().startswith("{"):
            return Bounds(read(text.strip()))
        return Bounds(default, {str(stream): read(value) for stream, value in json.loads(text).items()})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"option {name} is {text!r}: {error}") from None


def _merged(one: Bounds, other: Bounds, default: Bound) -> Bounds:
    both = set(one.streams) & set(other.streams)
    if both or (one.default != default and other.default != default):
        raise ConfigError(f"a sequence and a time both bound {', '.join(sorted(both)) or 'all streams'}: keep one")
    return Bounds(other.default if one.default == default else one.default, {**one.streams, **other.streams})


def _sequence(value: object) -> Bound:
    if value in ("earliest", "latest"):
        return Bound(value)
    number = int(str(value))
    if number < 1:
        raise ValueError("a sequence is 1 or more, or earliest, or latest")
    return Bound("sequence", number)


def _time(value: object) -> Bound:
    return Bound("time", parse_rfc3339(str(value)))


# --- values


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("give 1 or more")
    return number


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return text.lower() == "true"


def _seconds(text: str) -> float:
    """Read ``90``, ``90s``, ``1.5m``, ``200ms``."""
    unit = next((unit for unit in ("ms", "s", "m", "h") if text.endswith(unit)), "")
    number = float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    if not 0 <= number < float("inf"):
        raise ValueError("give seconds, or a number with ms, s, m or h")
    return number
