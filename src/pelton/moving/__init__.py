"""Copies streams from one store or cluster to another; backups that continue; a standby that can become the store."""

from pelton.moving.configs import CopyReport, StreamCopy
from pelton.moving.continuous_backup import ContinuousBackup
from pelton.moving.copying import copy
from pelton.moving.points import BackupPart, BackupPoint
from pelton.moving.promotion import Promotion, StandbyStatus, follow, promote, standby_status

__all__ = [
    "BackupPart",
    "BackupPoint",
    "ContinuousBackup",
    "CopyReport",
    "Promotion",
    "StandbyStatus",
    "StreamCopy",
    "copy",
    "follow",
    "promote",
    "standby_status",
]
