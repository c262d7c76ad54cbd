"""How fast Spark reads and writes streams, beside what Spark does without them: ``make bench-spark``."""
