"""Copies streams, with all that belongs to them, from one store or cluster to another; backups that continue."""

from pelton.moving.configs import CopyReport, StreamCopy
from pelton.moving.continuous_backup import ContinuousBackup
from pelton.moving.copying import copy
from pelton.moving.points import BackupPart, BackupPoint

__all__ = ["BackupPart", "BackupPoint", "ContinuousBackup", "CopyReport", "StreamCopy", "copy"]
