"""Filter pushdown: streams, sequences, times and subjects that a query's filters restrict a read to. Pure.

Spark passes simple predicates that must all hold. It does not apply again those that are accepted here; predicates on
times and subjects only narrow the read, so they are returned to Spark too.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from pelton.api.times import datetime_ns
from pelton.spark.options import Bound
from pelton.subjects import has_wildcard, is_subject

_MOST: Final = (1 << 63) - 1
_NEVER_NULL: Final = frozenset({"stream", "subject", "sequence", "time", "data", "size"})
_MICROSECOND: Final = 1000


@dataclass(frozen=True)
class PushedFilters:
    """The restrictions of a read. ``subjects`` None: those of the options."""

    streams: frozenset[str] | None = None
    first_seq: int = 1
    last_seq: int = _MOST
    from_time: Bound | None = None
    before_time: Bound | None = None
    subjects: tuple[str, ...] | None = None

    def has_stream(self, name: str) -> bool:
        """Whether a stream is read."""
        return self.streams is None or name in self.streams

    def filters(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        """Return the subject filters to read by: those of the options win, and Spark applies the query's own."""
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
