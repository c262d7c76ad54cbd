"""The options of a read, and what a query's filters restrict it to. Pure.

**Filter pushdown: streams, sequences, times and subjects that a query's filters restrict a read to. Pure.** Spark
passes simple predicates that must all hold. It does not apply again those that are accepted here; predicates on times
and subjects only narrow the read, so they are returned to Spark too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pelton.api import ConfigError
from pelton.api.times import datetime_ns, parse_rfc3339
from pelton.columns.arrow_batches import Decode
from pelton.spark.options import Bound, OptionParser, StoreOptions, flag, is_selected, positive, seconds, store_options
from pelton.subjects import has_wildcard, is_filter, is_subject

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
    """A default bound, and the bounds of single streams by name."""

    default: Bound
    streams: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, stream: str) -> Bound:
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
            found = _merge_bounds(found, _read_bounds(name, text, read, default), default)
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


def _merge_bounds(one: Bounds, other: Bounds, default: Bound) -> Bounds:
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


_MOST: Final = (1 << 63) - 1
_NEVER_NULL: Final = frozenset({"stream", "subject", "sequence", "time", "data", "size"})
_MICROSECOND: Final = 1000


@dataclass(frozen=True)
class PushedFilters:
    """The restrictions of a read. ``subjects`` is None for the subjects of the options."""

    streams: frozenset[str] | None = None
    first_seq: int = 1
    last_seq: int = _MOST
    from_time: Bound | None = None
    before_time: Bound | None = None
    subjects: tuple[str, ...] | None = None

    def has_stream(self, name: str) -> bool:
        return self.streams is None or name in self.streams

    def filters(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        """Return the subject filters to read by: the options' filters win, and Spark applies the query's own."""
        return asked if asked or self.subjects is None else self.subjects


@dataclass
class _FilterPusher:
    found: PushedFilters = field(default_factory=PushedFilters)

    def take(self, asked: Filter) -> bool:
        """Apply one predicate as far as possible; return whether Spark can skip it."""
        attribute: tuple[str, ...] = getattr(asked, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        if isinstance(asked, IsNotNull):
            return column in _NEVER_NULL
        value = getattr(asked, "value", None)
        taken = getattr(self, f"_{column}", None)
        return bool(taken is not None and taken(asked, value))

    def _stream(self, asked: Filter, value: Any) -> bool:
        names = _values(asked, value)
        if names is None:
            return False
        known = self.found.streams
        self.found = replace(self.found, streams=names if known is None else known & names)
        return True

    def _sequence(self, asked: Filter, value: Any) -> bool:
        first, last = _span(asked, value, 1)
        self.found = replace(
            self.found, first_seq=max(self.found.first_seq, first), last_seq=min(self.found.last_seq, last)
        )
        return (first, last) != (0, _MOST)

    def _time(self, asked: Filter, value: Any) -> bool:
        if not isinstance(value, datetime):
            return False
        # The column has microseconds, rounded down: a value stands for all its nanoseconds.
        moment = datetime_ns(value if value.tzinfo else value.replace(tzinfo=UTC))
        first, last = _span(asked, moment, _MICROSECOND)
        begin, end = self.found.from_time, self.found.before_time
        if first:
            self.found = replace(self.found, from_time=Bound("time", max(first, begin.value if begin else 0)))
        if last != _MOST:
            self.found = replace(self.found, before_time=Bound("time", min(last + 1, end.value if end else _MOST)))
        # Servers' clocks differ slightly, so times may not grow as sequences do: Spark applies the filter again.
        return False

    def _subject(self, asked: Filter, value: Any) -> bool:
        if self.found.subjects is not None:
            return False
        if isinstance(asked, StringStartsWith):
            prefix = str(value).rpartition(".")[0]
            if is_subject(prefix) and not has_wildcard(prefix):
                self.found = replace(self.found, subjects=(f"{prefix}.>",))
            return False
        names = _values(asked, value)
        if names is not None and all(is_subject(name) for name in names):
            self.found = replace(self.found, subjects=tuple(sorted(names)))
        # The options may have their own filters: Spark applies the filter again.
        return False


def _values(asked: Filter, value: Any) -> frozenset[str] | None:
    if isinstance(asked, EqualTo):
        return frozenset({str(value)})
    if isinstance(asked, In):
        return frozenset(map(str, value))
    return None


def _span(asked: Filter, value: Any, step: int) -> tuple[int, int]:
    """Return the smallest and the largest number that a comparison allows; a value stands for ``step`` numbers."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0, _MOST
    if isinstance(asked, EqualTo):
        return value, value + step - 1
    if isinstance(asked, GreaterThanOrEqual):
        return value, _MOST
    if isinstance(asked, GreaterThan):
        return value + step, _MOST
    if isinstance(asked, LessThanOrEqual):
        return 0, value + step - 1
    if isinstance(asked, LessThan):
        return 0, value - 1
    return 0, _MOST


def push_filters(filters: Sequence[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Return the restrictions of a read, and the filters that Spark still has to apply."""
    pusher = _FilterPusher()
    left = [asked for asked in filters if not pusher.take(asked)]
    return pusher.found, left
