"""The lag of a query, with pyspark's own types: ``make check`` has mypy read this file, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.spark import lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def told(query: StreamingQuery) -> dict[str, int]:
    """As the guides show it, and for each progress that Spark remembers."""
    return lag(query.lastProgress) | {name: most for one in query.recentProgress for name, most in lag(one).items()}


def test_a_query_without_progress_has_no_lag_yet() -> None:
    assert lag(None) == {}
