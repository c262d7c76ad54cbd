"""The data source ``pelton``: what Spark asks of it, handed to those who do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class PeltonSource(DataSource):
    """Streams of a store or a cluster as tables."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is given."""
        return "pelton"

    def schema(self) -> StructType | str:
        """Return the columns of a read that names none."""
        return "stream STRING, subject STRING, sequence BIGINT, data BINARY"


def register(spark: SparkSession) -> None:
    """Make ``format("pelton")`` known to a session that does not find it by itself."""
    spark.dataSource.register(PeltonSource)
