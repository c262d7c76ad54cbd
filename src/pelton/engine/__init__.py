"""The embedded Backend: durable streams in one SQLite file, without a server."""

from pelton.engine.bulk import BulkReader
from pelton.engine.engine import Engine
from pelton.engine.maintenance.upkeep import backup, compact, rekey, restore, salvage, verify
from pelton.engine.settings import EngineSettings
from pelton.engine.snapshots.read_only_engine import ReadOnlyEngine
from pelton.engine.transactions.staged import StagedWriter, load, staged

__all__ = [
    "BulkReader",
    "Engine",
    "EngineSettings",
    "ReadOnlyEngine",
    "StagedWriter",
    "backup",
    "compact",
    "load",
    "rekey",
    "restore",
    "salvage",
    "staged",
    "verify",
]
