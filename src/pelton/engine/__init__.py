"""The embedded Backend: durable streams in one SQLite file, without a server."""

from pelton.engine.connections import EngineSettings as EngineSettings
from pelton.engine.engine import Engine as Engine
