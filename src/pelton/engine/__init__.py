"""The embedded Backend: durable streams in one SQLite file, without a server."""

from pelton.engine.bulk import BulkReader, StagedWriter, load, staged
from pelton.engine.connections import EngineSettings
from pelton.engine.engine import Engine
from pelton.engine.read_only_engine import ReadOnlyEngine
from pelton.engine.upkeep import backup, compact, rekey, restore, salvage, verify

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
