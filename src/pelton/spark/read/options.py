"""The options of a read, from text to one frozen, validated value. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pelton.api import ConfigError
from pelton.api.times import parse_rfc3339
from pelton.columns.decoder import Decode
from pelton.spark.options import Bound, OptionParser, StoreOptions, flag, positive, seconds, store_options
from pelton.spark.stream_names import is_selected
from pelton.subjects import is_filter

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
_ROWS_PER_PARTITION: Final = 250_000
_ROWS_PER_TRIGGER: Final = 1_000_000


@dataclass(frozen=True)
class Bounds:
    """A default bound, and those of single streams by name."""

    default: Bound
    streams: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, stream: str) -> Bound:
        """Return the bound of a stream."""
        return self.streams.get(stream, self.default)


@dataclass(frozen=True)
class ReadOptions:
    """How to read. ``streams`` are names or patterns with ``*`` and ``?``; delays are in seconds; 0 means no limit."""

    store: StoreOptions
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
    """Return validated options. Raises ConfigError, also for an unknown option."""
    store, options = store_options(given, _READING)
    take = OptionParser(options)
    streams = _streams(options)
    return ReadOptions(
        store=store,
        streams=streams,
        subjects=_filters(options),
        decode=_decode(options),
        value_schema=options.get("valueSchema"),
        start=_bounds(options, "starting", Bound("earliest"), streams),
        end=_bounds(options, "ending", Bound("latest"), streams),
        min_partitions=take("minPartitions", positive, 1),
        rows_per_partition=take("rowsPerPartition", positive, _ROWS_PER_PARTITION),
        fail_on_data_loss=take("failOnDataLoss", flag, True),
        max_rows=take("maxRowsPerTrigger", positive, _ROWS_PER_TRIGGER),
        max_bytes=take("maxBytesPerTrigger", positive, 0),
        min_rows=take("minRowsPerTrigger", positive, 0),
        max_delay=take("maxTriggerDelay", seconds, 900.0),
        consumer=options.get("consumer"),
    )


def check_batch(options: ReadOptions) -> None:
    """Raise ConfigError for options that only a streaming query can have."""
    if options.consumer is not None:
        raise ConfigError("option consumer follows a streaming query; spark.read removes nothing: leave it out")


def check_streaming(options: ReadOptions) -> None:
    """Raise ConfigError for options that only a batch read can have."""
    if options.end != Bounds(Bound("latest")):
        raise ConfigError("a streaming query has no end: leave endingSequence and endingTime out, or use spark.read")


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
                f"option subjects: {text!r} is not a subject filter; write it like orders.eu.> or orders.*.new"
            )
    return filters


def _decode(options: Mapping[str, str]) -> Decode | None:
    text = options.get("decode")
    if text is None or text in ("json", "msgpack", "text"):
        return text  # type: ignore[return-value]  # one of the three
    raise ConfigError(f"option decode is {text!r}: choose json, msgpack or text, or leave it out for bytes")


# --- bounds: a word, a number or a time for all streams, or JSON with one for each


def _bounds(options: Mapping[str, str], side: str, default: Bound, streams: tuple[str, ...]) -> Bounds:
    by_sequence, by_time = options.get(f"{side}Sequence"), options.get(f"{side}Time")
    found = Bounds(default)
    for name, text, read in ((f"{side}Sequence", by_sequence, _sequence), (f"{side}Time", by_time, _time)):
        if text is not None:
            found = _merged(found, _read_bounds(name, text, read, default), default)
    for stream in found.streams:
        if not is_selected(stream, streams):
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
