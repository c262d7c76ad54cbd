"""What has slowed a store down, or damaged it."""

from __future__ import annotations

from pelton.api.backend import StoreTroubles
from pelton.storage import Database, column

_QUARANTINED = "SELECT count(*) FROM quarantine"


def troubles_of(database: Database) -> StoreTroubles:
    """Return the damaged messages that are known, and what this connection has met."""
    met = database.troubles
    return StoreTroubles(
        quarantined=column(database.execute(_QUARANTINED).fetchall())[0],
        slow_syncs=met.slow_syncs,
        slowest_sync=met.slowest_sync,
        writer_waits=met.writer_waits,
        longest_writer_wait=met.longest_writer_wait,
        blocked_checkpoints=met.blocked_checkpoints,
    )
