"""Rows and messages as Arrow columns: schemas, decoding, JSON, checksums."""
