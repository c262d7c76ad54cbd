"""The data source ``pelton``: what Spark asks of it, handed to those who do it.

Spark makes one from a query's options wherever it needs it, in processes that come and go: it only reads options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pelton.spark.active_session import activate
from pelton.spark.columns.read_schema import checked_schema, read_schema
from pelton.spark.read.batch_reader import PeltonBatchReader, reader
from pelton.spark.read.options import check_batch, check_streaming, read_options
from pelton.spark.read.stream_reader import PeltonStreamReader
from pelton.spark.write.writer import BatchWriter, StreamWriter

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
        return read_schema(options.decode, options.value_schema)

    def reader(self, schema: StructType) -> PeltonBatchReader:
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
    activate(spark)
