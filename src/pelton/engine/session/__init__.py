"""A transaction as a value: one connection, the registry of streams and consumers, and effects."""

from pelton.engine.session.account import Account
from pelton.engine.session.consumers import incoming
from pelton.engine.session.lifecycle import (
    advise_paused,
    create_consumer,
    create_stream,
    delete_consumers,
    delete_stream,
    retire,
    sweep,
    update_consumer,
    update_stream,
)
from pelton.engine.session.registry import Registry
from pelton.engine.session.session import Committed, Key, Session, SessionMark, StoreClock, Surroundings, Wakes

__all__ = [
    "Account",
    "Committed",
    "Key",
    "Registry",
    "Session",
    "SessionMark",
    "StoreClock",
    "Surroundings",
    "Wakes",
    "advise_paused",
    "create_consumer",
    "create_stream",
    "delete_consumers",
    "delete_stream",
    "incoming",
    "retire",
    "sweep",
    "update_consumer",
    "update_stream",
]
