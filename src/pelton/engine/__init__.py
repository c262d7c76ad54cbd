"""The embedded Backend: durable streams in one SQLite file, without a server."""

from pelton.engine.bulk import BulkReader as BulkReader
from pelton.engine.bulk import StagedWriter as StagedWriter
from pelton.engine.bulk import load as load
from pelton.engine.bulk import read_staged as read_staged
from pelton.engine.connections import EngineSettings as EngineSettings
from pelton.engine.engine import Engine as Engine
from pelton.engine.read_only_engine import ReadOnlyEngine as ReadOnlyEngine
