"""Copies streams, with all that belongs to them, from one store or cluster to another."""

from pelton.moving.copying import CopyReport, StreamCopy, copy

__all__ = ["CopyReport", "StreamCopy", "copy"]
