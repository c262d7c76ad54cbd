"""The arithmetic, verdicts and writers of the benchmarks; nothing here measures time."""
