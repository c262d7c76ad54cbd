"""Streams as archives: what one holds is read, and a store is built from one."""

from pelton.engine.archives.archives import ArchivedStream, ArchiveReader, RestoreFolder, StreamArchives

__all__ = ["ArchiveReader", "ArchivedStream", "RestoreFolder", "StreamArchives"]
