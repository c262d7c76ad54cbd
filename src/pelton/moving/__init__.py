"""Copies streams, with all that belongs to them, from one store or cluster to another."""

from pelton.moving.configs import CopyReport, StreamCopy
from pelton.moving.copying import copy

__all__ = ["CopyReport", "StreamCopy", "copy"]
