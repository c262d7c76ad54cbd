"""The tables of a store, their versions and how an older file is migrated.

``PRAGMA application_id`` marks a file as Pelton's, ``PRAGMA user_version`` is its schema. Each stream has its own
message table (``m_<id>``), so that messages are appended at the end of one tree and a dropped stream frees its pages
at once. Small hot rows are apart from the configurations, which rarely change.

- ``pelton_deliveries``: a commit writes whole pages, so what changes together stands together: the states of streams;
for each consumer its deliveries, then its state. The views ``stream_state``, ``pending`` and ``consumer_state`` show
them; what is written often is written to the table, and the rest to the views.
- ``stream_state``: counts and bounds of a stream up to ``last``. Fewer than 64 messages may come after that, which were
only appended since, without a gap; whoever reads the row counts them (``streams/state.py``).
- ``subjects``: one row per subject, for the messages up to ``stream_state.subjects_upto``; later messages are not
counted yet. ``first`` and ``last`` are bounds: no counted message of the subject is outside them; after deletions they
may be wider than the messages.
- ``ids``: message ids of the duplicate window, appended by sequence, removed from the front.
- ``timers``: when single messages expire, ``schedules``: subjects that hold a schedule, its message, and when it
fires next. Indexed by deadline, apart from the messages: those without a deadline cost nothing.
- ``meta.token_floor``: fencing tokens of deliveries are counted from it; ``consumers.token_floor``: its value when the
consumer was created. A token not above that belongs to an earlier consumer of the same name.
- ``pending``: one row per message delivered and not settled: ``dseq`` is the number of its last delivery, ``n`` counts
its deliveries, ``due`` is when it may be redelivered, ``waits`` is 1 once it was given back.
``consumer_state.due`` is never later than the earliest of them. ``pending_removed``: the same for messages that were
removed from the stream: they are not redelivered, and an ack still counts until the first pull after they were due.
- ``claims``: for consumers with a limit per subject: every message they have met and not settled; ``held`` is
1 for a message that may be in flight, 0 for one that waits behind another of its subject; ``rank`` is that of the
message. ``ready``: held, and not delivered yet; of a rank, the one with the lowest ``turn`` is next.
``consumer_state.turns`` is the last turn that was given, ``bypassed`` says when a lower rank is next.
- ``exhausted``: in a stream with interest retention: messages delivered ``max_deliver`` times and never settled.
- ``consumer_state.replay_*``: messages up to ``replay_upto`` are delivered at their original pace, ``replay_shift``
  after they were stored; the next is not due before ``replay_due``.
- ``consumer_state.ahead``: the number of matching messages after ``cursor`` up to ``ahead_last``, counted when the
stream had had ``ahead_removals`` removals; ``waiting``: messages behind the cursor that were never delivered
(claims, ready).
- ``pulls``: waiting pulls of priority groups, in any process; ``pins``: the pinned clients; ``nearest``: when a pull of
each failover distance was last made.
- ``sourcing``: the position (``seq``) of each source of a stream in its ``origin``, the last message it has ``taken``,
when, and what blocks it. ``parked``: messages it has skipped because there was no room for their subject, by the
subject they would be stored under; ``sourcing.parked`` counts them.
- ``pubsub_subscriptions``: the subscriptions of all processes; ``pubsub_outbox``: messages for subscriptions of other
processes than their ``origin``, for all (``subscription`` 0) or for one; ``total`` sums the bytes so far, to bound
what is kept.
- ``openers``: processes that push to subscribers in others; ``beat`` increases while they run, ``stopped`` is 1 if
the beat has not moved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import apsw

from pelton.storage.faults import Fault
from pelton.storage.rows import text
from pelton.subjects import matches

APPLICATION_ID: Final = 0x50454C54
SCHEMA_VERSION: Final = 6
NO_STORE: Final = "it is an empty file, and no store yet"

# The token floor is raised by this if it is unknown which tokens were given.
TOKEN_EPOCH: Final = 1 << 40

_VERSION_1: Final = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES('catalogue', 0), ('listeners', 0), ('epoch', 1), ('boot', ''), ('uuid', hex(randomblob(16)));
CREATE TABLE streams(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, config BLOB NOT NULL,
                     created INTEGER NOT NULL);
CREATE TABLE stream_state(id INTEGER PRIMARY KEY, msgs INTEGER NOT NULL, bytes INTEGER NOT NULL,
                          first INTEGER NOT NULL, last INTEGER NOT NULL, last_ts INTEGER NOT NULL,
                          removals INTEGER NOT NULL);
CREATE TABLE subjects(stream INTEGER NOT NULL, subject TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
                      msgs INTEGER NOT NULL, PRIMARY KEY(stream, subject)) WITHOUT ROWID;
CREATE TABLE ids(stream INTEGER NOT NULL, seq INTEGER NOT NULL, ts INTEGER NOT NULL, id TEXT NOT NULL,
                 PRIMARY KEY(stream, seq)) WITHOUT ROWID;
CREATE TABLE timers(stream INTEGER NOT NULL, seq INTEGER NOT NULL, due INTEGER NOT NULL,
                    PRIMARY KEY(stream, seq)) WITHOUT ROWID;
CREATE INDEX timers_due ON timers(stream, due);
CREATE TABLE schedules(stream INTEGER NOT NULL, subject TEXT NOT NULL, seq INTEGER NOT NULL, due INTEGER NOT NULL,
                       PRIMARY KEY(stream, subject)) WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules(stream, due);
CREATE TABLE consumers(id INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL, name TEXT NOT NULL,
                       config BLOB NOT NULL, created INTEGER NOT NULL, epoch INTEGER NOT NULL,
                       UNIQUE(stream, name));
CREATE TABLE consumer_state(id INTEGER PRIMARY KEY, dseq INTEGER NOT NULL, cursor INTEGER NOT NULL,
                            delivered INTEGER NOT NULL, due INTEGER NOT NULL, unsettled INTEGER NOT NULL,
                            waiting INTEGER NOT NULL, ahead INTEGER NOT NULL, ahead_last INTEGER NOT NULL,
                            ahead_removals INTEGER NOT NULL, last_active INTEGER NOT NULL, last_ack INTEGER NOT NULL,
                            replay_upto INTEGER NOT NULL, replay_shift INTEGER NOT NULL,
                            replay_due INTEGER NOT NULL);
CREATE TABLE pending(consumer INTEGER NOT NULL, seq INTEGER NOT NULL, dseq INTEGER NOT NULL, n INTEGER NOT NULL,
                     due INTEGER NOT NULL, subject TEXT, waits INTEGER NOT NULL,
                     PRIMARY KEY(consumer, seq)) WITHOUT ROWID;
CREATE TABLE claims(consumer INTEGER NOT NULL, subject TEXT NOT NULL, seq INTEGER NOT NULL, held INTEGER NOT NULL,
                    PRIMARY KEY(consumer, subject, seq)) WITHOUT ROWID;
CREATE TABLE ready(consumer INTEGER NOT NULL, seq INTEGER NOT NULL, subject TEXT NOT NULL,
                   PRIMARY KEY(consumer, seq)) WITHOUT ROWID;
CREATE TABLE exhausted(consumer INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(consumer, seq)) WITHOUT ROWID;
CREATE TABLE pulls(consumer INTEGER NOT NULL, id TEXT NOT NULL, grp TEXT NOT NULL, owner TEXT NOT NULL,
                   since INTEGER NOT NULL, seen INTEGER NOT NULL, priority INTEGER NOT NULL,
                   conditional INTEGER NOT NULL, failover INTEGER NOT NULL, PRIMARY KEY(consumer, id)) WITHOUT ROWID;
CREATE TABLE pins(consumer INTEGER NOT NULL, grp TEXT NOT NULL, pin TEXT NOT NULL, since INTEGER NOT NULL,
                  seen INTEGER NOT NULL, PRIMARY KEY(consumer, grp)) WITHOUT ROWID;
CREATE TABLE nearest(consumer INTEGER NOT NULL, grp TEXT NOT NULL, failover INTEGER NOT NULL, seen INTEGER NOT NULL,
                     PRIMARY KEY(consumer, grp, failover)) WITHOUT ROWID;
CREATE TABLE listeners(id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, subject TEXT NOT NULL,
                       grp TEXT NOT NULL);
CREATE TABLE openers(name TEXT PRIMARY KEY, beat INTEGER NOT NULL, stopped INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE told(seq INTEGER PRIMARY KEY AUTOINCREMENT, origin TEXT NOT NULL, listener INTEGER NOT NULL,
                  route TEXT NOT NULL, subject TEXT NOT NULL,
                  reply TEXT NOT NULL, hdr BLOB, data BLOB NOT NULL, total INTEGER NOT NULL);
CREATE TABLE sourcing(id INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL, source TEXT NOT NULL,
                      origin INTEGER NOT NULL, seq INTEGER NOT NULL, parked INTEGER NOT NULL, taken INTEGER NOT NULL,
                      active INTEGER NOT NULL, stalled INTEGER NOT NULL, problem TEXT NOT NULL, UNIQUE(stream, source));
CREATE TABLE parked(source INTEGER NOT NULL, subject TEXT NOT NULL, seq INTEGER NOT NULL,
                    PRIMARY KEY(source, subject, seq)) WITHOUT ROWID;
CREATE TABLE quarantine(stream INTEGER NOT NULL, seq INTEGER NOT NULL, found INTEGER NOT NULL, reason TEXT NOT NULL,
                        PRIMARY KEY(stream, seq)) WITHOUT ROWID;
"""

# Earlier, floors were counted in epochs, and deletions of some consumers raised them by a whole epoch.
_VERSION_2: Final = f"""
UPDATE meta SET key='token_floor', value=value*{TOKEN_EPOCH} WHERE key='epoch';
UPDATE consumers SET epoch=epoch*{TOKEN_EPOCH};
ALTER TABLE consumers RENAME COLUMN epoch TO token_floor;
CREATE TABLE pending_removed(consumer INTEGER NOT NULL, seq INTEGER NOT NULL, dseq INTEGER NOT NULL, n INTEGER NOT NULL,
                             due INTEGER NOT NULL, PRIMARY KEY(consumer, seq)) WITHOUT ROWID;
"""

# Publish and subscribe get the field's words.
_VERSION_3: Final = """
ALTER TABLE listeners RENAME TO pubsub_subscriptions;
ALTER TABLE told RENAME TO pubsub_outbox;
ALTER TABLE pubsub_outbox RENAME COLUMN listener TO subscription;
UPDATE meta SET key='subscriptions' WHERE key='listeners';
"""

# Subjects are counted later than their messages are stored; until now, they were counted at once.
_VERSION_4: Final = """
ALTER TABLE stream_state ADD COLUMN subjects_upto INTEGER NOT NULL DEFAULT 0;
UPDATE stream_state SET subjects_upto=last;
"""

# Subjects with a limit take turns, and have ranks; until now, the oldest message was next.
_VERSION_5: Final = """
ALTER TABLE claims ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ready ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ready ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
UPDATE ready SET turn=seq;
CREATE INDEX pelton_ready_turns ON ready(consumer, rank DESC, turn);
ALTER TABLE consumer_state ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE consumer_state ADD COLUMN bypassed INTEGER NOT NULL DEFAULT 0;
UPDATE consumer_state SET turns=cursor;
"""

_STATES: Final = "pelton_deliveries"
STATE_SEQ: Final = (1 << 63) - 1
"""In ``pelton_deliveries``, the sequence of the row with the state of a consumer; those of streams have consumer 0."""

OF_CONSUMERS: Final = (
    *("cursor", "delivered", "ahead", "ahead_last", "ahead_removals", "last_active", "last_ack"),
    *("replay_upto", "replay_shift", "replay_due", "turns", "bypassed"),
)
OF_STREAMS: Final = ("first", "removals", "subjects_upto")


def _view(name: str, shown: str, columns: Mapping[str, str], parts: Sequence[str], where: str, key: str) -> str:
    """Return SQL for a view of states, which can be written like a table.

    Of what is ``shown``, ``columns`` are those of the table, and ``parts`` is kept as JSON, of which a damaged one is
    NULL. ``key`` are the consumer and the sequence of the row with an id.
    """
    whole = "iif(json_valid(subject), subject, '[]')"
    read = dict(columns) | {part: f"json_extract({whole}, '$[{place}]')" for place, part in enumerate(parts)}
    json = f"json_array({', '.join(f'new.{part}' for part in parts)})"
    kept = {column: f"new.{each}" for each, column in columns.items() if each != "id"} | {"subject": json}
    changes = ", ".join(f"{column}={value}" for column, value in kept.items())
    consumer, seq = key.format("old").split()
    here = f"consumer={consumer} AND seq={seq}"
    return f"""
CREATE VIEW {name} AS
SELECT {", ".join(f"{read[each]} AS {each}" for each in shown.split())} FROM {_STATES} WHERE {where};
CREATE TRIGGER pelton_{name}_insert INSTEAD OF INSERT ON {name} BEGIN
INSERT INTO {_STATES}(consumer, seq, {", ".join(kept)})
VALUES({key.format("new").replace(" ", ", ")}, {", ".join(kept.values())}); END;
CREATE TRIGGER pelton_{name}_update INSTEAD OF UPDATE ON {name} BEGIN UPDATE {_STATES} SET {changes} WHERE {here}; END;
CREATE TRIGGER pelton_{name}_delete INSTEAD OF DELETE ON {name} BEGIN DELETE FROM {_STATES} WHERE {here}; END;
"""


# A commit writes whole pages: what changes together stands together. The row of a stream is not written with each
# message any more; until now, it told everything.
_VERSION_6: Final = f"""
CREATE TABLE {_STATES}(consumer INTEGER NOT NULL, seq INTEGER NOT NULL, dseq INTEGER NOT NULL, n INTEGER NOT NULL,
                       due INTEGER NOT NULL, subject TEXT, waits INTEGER NOT NULL,
                       PRIMARY KEY(consumer, seq)) WITHOUT ROWID;
INSERT INTO {_STATES} SELECT * FROM pending;
INSERT INTO {_STATES} SELECT id, {STATE_SEQ}, dseq, unsettled, due, json_array({", ".join(OF_CONSUMERS)}), waiting
FROM consumer_state;
INSERT INTO {_STATES} SELECT 0, id, last, msgs, last_ts, json_array({", ".join(OF_STREAMS)}), bytes FROM stream_state;
DROP TABLE pending;
DROP TABLE consumer_state;
DROP TABLE stream_state;
-- The signs leave the search to the bounds that a statement gives.
CREATE VIEW pending AS SELECT * FROM {_STATES} WHERE +consumer>0 AND +seq<{STATE_SEQ};
CREATE TRIGGER pelton_pending_delete INSTEAD OF DELETE ON pending BEGIN
DELETE FROM {_STATES} WHERE consumer=old.consumer AND seq=old.seq; END;
{
    _view(
        "consumer_state",
        "id dseq cursor delivered due unsettled waiting ahead ahead_last ahead_removals last_active last_ack "
        "replay_upto replay_shift replay_due turns bypassed",
        {"id": "consumer", "dseq": "dseq", "unsettled": "n", "due": "due", "waiting": "waits"},
        OF_CONSUMERS,
        f"consumer>0 AND seq={STATE_SEQ}",
        f"{{0}}.id {STATE_SEQ}",
    )
}
{
    _view(
        "stream_state",
        "id msgs bytes first last last_ts removals subjects_upto",
        {"id": "seq", "last": "dseq", "msgs": "n", "last_ts": "due", "bytes": "waits"},
        OF_STREAMS,
        "consumer=0",
        "0 {0}.id",
    )
}
"""

# The script at position v migrates a store from version v to v + 1; version 0 is an empty file.
MIGRATIONS: Final[tuple[str, ...]] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6)
_MADE: Final = r"(?:CREATE TABLE|CREATE INDEX|RENAME TO) (\w+)"


def message_table(stream: int) -> str:
    return (
        f"CREATE TABLE m_{stream}(seq INTEGER PRIMARY KEY, ts INTEGER NOT NULL, subject TEXT NOT NULL, "
        "hdr BLOB, data BLOB NOT NULL, crc INTEGER NOT NULL)"
    )


def migrate(connection: apsw.Connection, version: int, goal: int) -> None:
    """Migrate a store from ``version`` to that of ``goal``, in one transaction that the caller holds."""
    for script in MIGRATIONS[version:goal]:
        _check_names_are_free(connection, script)
        connection.execute(script)
    connection.execute(f"PRAGMA user_version={goal}")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    # Processes of an older Pelton that have the store open check the schema when this number changes.
    connection.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")


def is_reserved(name: str | None) -> bool:
    """Return whether a table of this name is Pelton's, was so in an earlier version, or may become so."""
    lowered = (name or "").lower()
    return lowered in _ours() or re.fullmatch(r"m_\d+", lowered) is not None


@cache
def _ours() -> frozenset[str]:
    return frozenset(name.lower() for script in MIGRATIONS for name in re.findall(_MADE, script))


def _check_names_are_free(connection: apsw.Connection, script: str) -> None:
    """Refuse a store in which a user's table has a name that a new version needs."""
    for name in re.findall(_MADE, script):
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE lower(name)=?", (name,)).fetchall():
            path = connection.filename
            advice = "rename it with the Pelton that you have used so far (ALTER TABLE ... RENAME TO ...)"
            raise Fault("settings", path, f"this Pelton needs the name of your own table {name!r}; {advice}")


def pragma(connection: apsw.Connection, name: str) -> int:
    value = connection.execute(f"PRAGMA {name}").fetchall()[0][0]
    assert isinstance(value, int)
    return value


def check_owner(connection: apsw.Connection, path: str) -> None:
    """Refuse a file that is not Pelton's, or has a newer schema, before anything is written to it."""
    # Use one snapshot: another process may be creating the store at the same time.
    connection.execute("BEGIN")
    application = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (tables or application or version):
        raise Fault("foreign", path, "this is a SQLite file of another program, not a Pelton store")
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise newer(path, version)


REPLACED_BY: Final = "replaced_by"
"""The key in ``meta`` of the path of the standby that has taken a store's place."""


def check_not_replaced(connection: apsw.Connection, path: str) -> None:
    """Refuse a store whose place another one has taken: what was written to it would be lost."""
    found = connection.execute("SELECT value FROM meta WHERE key=?", (REPLACED_BY,)).fetchall()
    if found:
        other = text(found[0][0])
        # On another host, its server is followed.
        source = other if other.startswith("/") else "nats://HOST:PORT"
        follow = f"to let it follow the new store, which overwrites it: `pelton copy {source} {path} --follow --demote`"
        if "://" in other or other.startswith("context:"):
            follow = f"to have a file again, copy the cluster to another one: `pelton copy {other} NEW`"
        detail = f"it was replaced by its standby {other}: write to that one. This one opens to be read only; {follow}"
        raise Fault("standby", path, detail)


def newer(path: str, version: int) -> Fault:
    """Return the fault for a store with a schema that this Pelton does not know."""
    return Fault(
        "newer", path, f"the store has schema {version}, this Pelton knows up to {SCHEMA_VERSION}; upgrade Pelton"
    )


def add_functions(connection: apsw.Connection) -> None:
    """Define the SQL functions that Pelton's statements call.

    ``pelton_matches(filter, subject)``, and ``pelton_finds(function, subject)``, for functions of Python.
    """
    connection.create_scalar_function("pelton_matches", _matches, 2, deterministic=True)
    connection.create_scalar_function("pelton_finds", _finds, 2, deterministic=True)


def _matches(*values: object) -> bool:
    subject_filter, subject = values
    return matches(text(subject_filter), text(subject))


def _finds(*values: Any) -> bool:
    find, subject = values
    found: int | None = find(text(subject))
    return found is not None
