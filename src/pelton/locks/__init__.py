"""Locks, semaphores and elections: leases in a key-value bucket, on every backend."""

from pelton.locks.campaign import State
from pelton.locks.candidate_runner import Leader
from pelton.locks.election import Election, ElectionOptions, Term
from pelton.locks.keeper import LockKeeper, ThreadKeeper
from pelton.locks.lock import Lock, LockLease, LockManager, Semaphore
from pelton.locks.lock_table import lock_spec

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
