"""Locks, semaphores and elections: leases in a key-value bucket, on every backend."""

from pelton.locks.ballot import Leader
from pelton.locks.campaign import State
from pelton.locks.election import Election, ElectionOptions
from pelton.locks.held import Held
from pelton.locks.keeper import Keeper, ThreadKeeper
from pelton.locks.lock import Lock, Semaphore
from pelton.locks.manager import LockManager
from pelton.locks.records import place
from pelton.locks.term import Term

__all__ = [
    "Election",
    "ElectionOptions",
    "Held",
    "Keeper",
    "Leader",
    "Lock",
    "LockManager",
    "Semaphore",
    "State",
    "Term",
    "ThreadKeeper",
    "place",
]
