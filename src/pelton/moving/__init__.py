"""Copies streams, with all that belongs to them, from one store or cluster to another; backups that continue."""

from pelton.moving.backups import Backups
from pelton.moving.configs import CopyReport, StreamCopy
from pelton.moving.copying import copy
from pelton.moving.points import BackupPart, BackupPoint

__all__ = ["BackupPart", "BackupPoint", "Backups", "CopyReport", "StreamCopy", "copy"]
