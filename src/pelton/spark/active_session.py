"""The thread's active Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: ``df.write`` looks up Python data sources only there."""
    session = getattr(spark, "_jsparkSession", None)
    # Spark Connect sessions have none: there, the server looks up the data source.
    if session is not None and spark._jvm is not None:
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
