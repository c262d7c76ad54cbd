"""Arrow without Spark."""
