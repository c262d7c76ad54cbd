"""Spark, through PySpark, on real sessions."""
