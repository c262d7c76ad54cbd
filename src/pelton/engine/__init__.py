"""The embedded Backend: durable streams in one SQLite file, without a server."""

from pelton.engine.bulk import BulkReader
from pelton.engine.engine import Engine
from pelton.engine.keys import Key, KeyFile, key_bytes
from pelton.engine.settings import EngineSettings
from pelton.engine.staged import StagedWriter, load, staged
from pelton.engine.upkeep import backup, compact, rekey, restore, salvage, verify

__all__ = [
    "BulkReader",
    "Engine",
    "EngineSettings",
    "Key",
    "KeyFile",
    "StagedWriter",
    "backup",
    "compact",
    "key_bytes",
    "load",
    "rekey",
    "restore",
    "salvage",
    "staged",
    "verify",
]
