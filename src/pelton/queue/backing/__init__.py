"""The streams and consumers behind a queue: made, read, and as the source of a worker's jobs."""
