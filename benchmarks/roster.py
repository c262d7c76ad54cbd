"""The contenders, with the same names and guarantees in every case."""

from __future__ import annotations

from benchmarks.case import FSYNCED, OS_CACHE, UNSYNCED, Contender

PELTON = "Pelton"
PELTON_OFF = "Pelton, sync=off"
NATS = "nats-py"
NATS_ALWAYS = "nats-py, sync_interval: always"
NATSIO = "natsio"
BARE = "bare APSW"

HUEY = "huey"
HUEY_OFF = "huey, fsync off"
ACK_QUEUE = "persist-queue SQLiteAckQueue"
ACK_QUEUE_OFF = "persist-queue SQLiteAckQueue, sync off"
PLAIN_QUEUE = "persist-queue SQLiteQueue"
PLAIN_QUEUE_OFF = "persist-queue SQLiteQueue, sync off"
LITEQUEUE = "litequeue, synchronous=FULL"
LITEQUEUE_OFF = "litequeue, synchronous=OFF"

_LOSES = "; a crash loses the job that runs"
_QUEUES: tuple[tuple[str, dict[str, bool], str], ...] = (
    ("huey_jobs", {}, _LOSES),
    ("persistqueue_jobs", {"acked": True}, ""),
    ("persistqueue_jobs", {"acked": False}, _LOSES),
    ("litequeue_jobs", {}, ""),
)
"""Module, options and guarantee of the queues, in the order of their names."""

_ON_REDIS = "fsynced before the reply, by Redis"
ON_SERVERS: tuple[Contender, ...] = (
    Contender("RQ", "peers.redis_jobs:on_rq", _ON_REDIS),
    Contender("dramatiq", "peers.redis_jobs:on_dramatiq", _ON_REDIS),
    Contender("SAQ", "peers.redis_jobs:on_saq", _ON_REDIS),
    Contender("procrastinate", "peers.postgres_jobs:on_procrastinate", "fsynced before the reply, by PostgreSQL"),
    Contender("DBOS", "peers.postgres_jobs:on_dbos", "fsynced before the reply, by PostgreSQL"),
)
"""Queues that need a server; one that is not installed is skipped."""


def pelton(target: str, name: str = PELTON, sync: str = "commit") -> Contender:
    """Return Pelton with its default setting, or without syncing."""
    guarantee = FSYNCED if sync == "commit" else UNSYNCED
    return Contender(name, f"ours.{target}", guarantee, {"sync": sync})


def nats(target: str, unawaited_acks: bool = False) -> tuple[Contender, Contender]:
    """Return nats-py with the server's default, and with an fsync for each message."""
    target = f"peers.{target}"
    note = "; acks not awaited" if unawaited_acks else ""
    return (
        Contender(NATS, target, OS_CACHE + note, {"always": False}),
        Contender(NATS_ALWAYS, target, FSYNCED + note, {"always": True}),
    )


def natsio(function: str, unawaited_acks: bool = False) -> Contender:
    """Return natsio with the server's default."""
    note = "; acks not awaited" if unawaited_acks else ""
    return Contender(NATSIO, f"peers.natsio_streams:{function}", OS_CACHE + note)


def bare(function: str) -> Contender:
    """Return SQLite itself on this disk, without any of our semantics."""
    return Contender(BARE, f"peers.bare_apsw:{function}", FSYNCED + "; no semantics, a yardstick")


def queues(function: str, fsync: bool) -> tuple[Contender, ...]:
    """Return the Python queues on SQLite at one level of durability."""
    names = (
        (HUEY, ACK_QUEUE, PLAIN_QUEUE, LITEQUEUE)
        if fsync
        else (HUEY_OFF, ACK_QUEUE_OFF, PLAIN_QUEUE_OFF, LITEQUEUE_OFF)
    )
    return tuple(
        Contender(
            name, f"peers.{module}:{function}", (FSYNCED if fsync else UNSYNCED) + note, {"fsync": fsync, **extra}
        )
        for name, (module, extra, note) in zip(names, _QUEUES, strict=True)
    )
