"""The embedded Backend: durable streams in one SQLite file, without a server."""

from pelton.engine.engine import Engine, EngineSettings
from pelton.engine.keys import Key, KeyFile, key_bytes
from pelton.engine.upkeep import compact, rekey

__all__ = ["Engine", "EngineSettings", "Key", "KeyFile", "compact", "key_bytes", "rekey"]
