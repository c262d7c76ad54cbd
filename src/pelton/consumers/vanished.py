"""What a consumer still has rows of, although its messages were removed from the stream: counted, and left alone.

A store that is only read cannot remove these rows, as using the consumer does.
"""

from __future__ import annotations

from typing import NamedTuple

from pelton.storage import Database


class Vanished(NamedTuple):
    """The numbers of removed messages that count as delivered and not settled, and as waiting for delivery."""

    pending: int
    waiting: int


def vanished(database: Database, table: str, consumer: int, *, exclusive: bool) -> Vanished:
    """Count them for a consumer of the stream whose messages are in ``table``; ``exclusive`` if subjects are.

    The holder of an exclusive subject keeps working even if its message is gone, so it still counts.
    """
    missing = f"NOT EXISTS(SELECT 1 FROM {table} m WHERE m.seq=t.seq)"
    undelivered = "NOT EXISTS(SELECT 1 FROM pending p WHERE p.consumer=?1 AND p.seq=t.seq)"
    behind = "claims" if exclusive else "ready"
    pending = f"SELECT count(*) FROM pending t WHERE consumer=?1 AND {missing}"
    waiting = f"SELECT count(*) FROM {behind} t WHERE consumer=?1 AND {missing} AND {undelivered}"
    return Vanished(
        0 if exclusive else int(database.value(pending, (consumer,))), int(database.value(waiting, (consumer,)))
    )
