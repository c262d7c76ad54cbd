"""Streams as archives: what one holds is read, and a store is built from one."""

from pelton.engine.archives.archives import RestoreFolder, StreamArchives
from pelton.engine.archives.building import ArchivedStream
from pelton.engine.archives.reading import ArchiveReader

__all__ = ["ArchiveReader", "ArchivedStream", "RestoreFolder", "StreamArchives"]
