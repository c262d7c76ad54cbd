"""The embedded Backend: catalogue, transactions, wake-ups."""

from pelton.engine.engine import Engine, EngineSettings

__all__ = ["Engine", "EngineSettings"]
