"""The snapshots of a store that a process has open for writing, too."""

from __future__ import annotations

from collections.abc import Callable

from pelton.engine.connections import Connections
from pelton.engine.snapshots.sql_snapshot import CopySnapshot, SqlSnapshot
from pelton.runtime import Clock


class SqlSnapshots:
    """Takes them; ``check`` raises if the store cannot be used."""

    def __init__(self, connections: Connections, check: Callable[[], None], clock: Clock) -> None:
        self._connections = connections
        self._check = check
        self._clock = clock

    def take(self, timeout: float) -> SqlSnapshot:
        """Return SQL on one snapshot, open for at most ``timeout`` seconds."""
        self._check()
        if self._connections.settings.memory:
            return CopySnapshot(self._connections.copied, self._clock, timeout)
        return SqlSnapshot(self._connections.reading, self._clock, timeout)
