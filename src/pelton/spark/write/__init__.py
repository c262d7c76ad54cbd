"""Writes: row encoders, staging, the commit log, and the batch and the streaming writer."""
