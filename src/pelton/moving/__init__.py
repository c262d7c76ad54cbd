"""Copies streams, with all that belongs to them, from one store or cluster to another."""

from pelton.moving.copying import copy
from pelton.moving.report import CopyReport, StreamCopy

__all__ = ["CopyReport", "StreamCopy", "copy"]
