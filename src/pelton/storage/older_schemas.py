"""Older schemas, seen as the present one: views of a connection that only reads, beside the tables of the store.

So whoever only looks needs no migration, and changes nothing that an older Pelton still works with. What the present
schema has under the same name and with the same columns is read as it is, messages among it.
"""

from __future__ import annotations

from typing import Final

import apsw

from pelton.storage.schema import OF_CONSUMERS, OF_STREAMS, SCHEMA_VERSION, STATE_SEQ, TOKEN_EPOCH

_PARTS: Final = "pelton_deliveries_of_"
# In stores before a version: the view that it gets, and of what.
_SEEN: Final[tuple[tuple[int, str, str], ...]] = (
    (
        2,
        "consumers",
        f"SELECT id, stream, name, config, created, epoch*{TOKEN_EPOCH} AS token_floor FROM main.consumers",
    ),
    (2, "pending_removed", "SELECT consumer, seq, dseq, n, due FROM main.pending WHERE 0"),
    (
        3,
        "meta",
        (
            "SELECT CASE key WHEN 'epoch' THEN 'token_floor' WHEN 'listeners' THEN 'subscriptions' ELSE key END "
            f"AS key, iif(key='epoch', value*{TOKEN_EPOCH}, value) AS value FROM main.meta"
        ),
    ),
    (3, "pubsub_subscriptions", "SELECT * FROM main.listeners"),
    (
        3,
        "pubsub_outbox",
        "SELECT seq, origin, listener AS subscription, route, subject, reply, hdr, data, total FROM main.told",
    ),
    (4, "stream_state", "SELECT *, last AS subjects_upto FROM main.stream_state"),
    (5, "claims", "SELECT *, 0 AS rank FROM main.claims"),
    (5, "ready", "SELECT *, 0 AS rank, seq AS turn FROM main.ready"),
    (5, "consumer_state", "SELECT *, cursor AS turns, 0 AS bypassed FROM main.consumer_state"),
    (
        6,
        f"{_PARTS}streams",
        (
            f"SELECT 0 AS consumer, id AS seq, last AS dseq, msgs AS n, last_ts AS due, "
            f"json_array({', '.join(OF_STREAMS)}) AS subject, bytes AS waits FROM stream_state"
        ),
    ),
    (
        6,
        f"{_PARTS}consumers",
        (
            f"SELECT id AS consumer, {STATE_SEQ} AS seq, dseq, unsettled AS n, due, "
            f"json_array({', '.join(OF_CONSUMERS)}) AS subject, waiting AS waits FROM consumer_state"
        ),
    ),
    (6, f"{_PARTS}pending", "SELECT consumer, seq, dseq, n, due, subject, waits FROM main.pending"),
    (
        6,
        "pelton_deliveries",
        " UNION ALL ".join(f"SELECT * FROM {_PARTS}{part}" for part in ("streams", "consumers", "pending")),
    ),
)


def show_as_present(connection: apsw.Connection, version: int) -> None:
    """Let a connection see a store of an older schema as one of :data:`SCHEMA_VERSION`; only its own memory changes."""
    for before, name, sql in _SEEN:
        if version < before <= SCHEMA_VERSION:
            connection.execute(f"CREATE TEMP VIEW {name} AS {sql}")


def parts_of(connection: apsw.Connection, table: str) -> list[str]:
    """Return the views that a table is seen through, if it is a union of several, or the table itself."""
    sql = "SELECT name FROM sqlite_temp_schema WHERE name GLOB ?"
    return [str(name) for (name,) in connection.execute(sql, (f"{table}_of_*",))] or [table]
