"""The data source ``pelton``: it makes the readers and writers that Spark asks for.

Spark creates one from a query's options wherever it needs one, in short-lived processes: all it does is parse options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pelton.spark.columns import checked_schema, read_schema
from pelton.spark.read.read_options import check_batch, check_streaming, read_options
from pelton.spark.read.readers import PeltonBatchReader, PeltonStreamReader, reader
from pelton.spark.store_handle import activate
from pelton.spark.write.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class PeltonSource(DataSource):
    """Streams of a store file or a cluster as tables."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "pelton"

    def schema(self) -> str:
        """Return the schema of a read without one of its own."""
        options = read_options(self.options)
        return read_schema(options.decode, options.value_schema)

    def reader(self, schema: StructType) -> PeltonBatchReader:
        """Return the reader of a batch query. Raises ConfigError."""
        options = read_options(self.options)
        check_batch(options)
        return reader(options, checked_schema(schema, options.decode))

    def streamReader(self, schema: StructType) -> PeltonStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a streaming query. Raises ConfigError."""
        options = read_options(self.options)
        check_streaming(options)
        return PeltonStreamReader(options, checked_schema(schema, options.decode))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a DataFrame. Raises ConfigError, also for columns that do not fit the target."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return the writer of a streaming query's batches. Raises as :meth:`writer`."""
        return StreamWriter(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register ``format("pelton")`` with ``spark``, a session that lacks it, and for writes from this thread."""
    spark.dataSource.register(PeltonSource)
    activate(spark)
