"""Studies of one question each, beside the cases that `make bench` repeats: `python -m benchmarks.studies.NAME`."""
