"""Reads that never take the writer: a store opened only to be read, and SQL on a snapshot."""
