"""The data source ``pelton``: what Spark asks of it, handed to those who do it.

Spark makes one from a query's options wherever it needs it, in processes that come and go: it only reads options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pelton.spark.columns import checked_schema, full_schema
from pelton.spark.options import check_batch, check_streaming, read_options
from pelton.spark.reader import PeltonReader, reader
from pelton.spark.stream_reader import PeltonStreamReader
from pelton.spark.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class PeltonSource(DataSource):
    """Streams of a store or a cluster as tables."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is given."""
        return "pelton"

    def schema(self) -> str:
        """Return the columns of a read that names none."""
        options = read_options(self.options)
        return full_schema(options.decode, options.value_schema)

    def reader(self, schema: StructType) -> PeltonReader:
        """Return what reads a batch. Raises ConfigError."""
        options = read_options(self.options)
        check_batch(options)
        return reader(options, checked_schema(schema, options.decode))

    def streamReader(self, schema: StructType) -> PeltonStreamReader:  # noqa: N802  # Spark's name
        """Return what reads batch by batch. Raises ConfigError."""
        options = read_options(self.options)
        check_streaming(options)
        return PeltonStreamReader(options, checked_schema(schema, options.decode))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what writes a batch. Raises ConfigError, also where the columns do not fit."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return what writes the batches of a streaming query. Raises as :meth:`writer`."""
        return StreamWriter(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make ``format("pelton")`` known to a session that does not find it by itself, and to writes from this thread."""
    spark.dataSource.register(PeltonSource)
    be_active(spark)


def be_active(spark: SparkSession) -> None:
    """Make a session that of this thread: ``df.write`` looks for formats made in Python there, and nowhere else."""
    session = getattr(spark, "_jsparkSession", None)
    # A session of Spark Connect has none: there the server does that.
    if session is not None and spark._jvm is not None:
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
