"""Locks, semaphores and elections: leases in a key-value bucket, on every backend."""

from pelton.locks.ballot import Leader
from pelton.locks.campaign import State
from pelton.locks.election import Election, ElectionOptions
from pelton.locks.term import Term

__all__ = ["Election", "ElectionOptions", "Leader", "State", "Term"]
