"""Locks, semaphores and elections: leases in a key-value bucket, on every backend."""

from pelton.locks.campaign import State
from pelton.locks.election import Election, ElectionOptions, Term
from pelton.locks.election_record import Leader
from pelton.locks.held import LockLease
from pelton.locks.keeper import LockKeeper, ThreadKeeper
from pelton.locks.lock import Lock, Semaphore
from pelton.locks.manager import LockManager
from pelton.locks.records import lock_spec

__all__ = [
    "Election",
    "ElectionOptions",
    "Leader",
    "Lock",
    "LockKeeper",
    "LockLease",
    "LockManager",
    "Semaphore",
    "State",
    "Term",
    "ThreadKeeper",
    "lock_spec",
]
