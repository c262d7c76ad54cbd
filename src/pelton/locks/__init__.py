"""Locks, semaphores and elections: leases in a key-value bucket, on every backend."""

from pelton.locks.campaign import State as State
from pelton.locks.candidate_runner import Leader as Leader
from pelton.locks.election import Election as Election
from pelton.locks.election import ElectionOptions as ElectionOptions
from pelton.locks.election import Term as Term
from pelton.locks.keeper import LockKeeper as LockKeeper
from pelton.locks.keeper import ThreadKeeper as ThreadKeeper
from pelton.locks.lock import Lock as Lock
from pelton.locks.lock import LockLease as LockLease
from pelton.locks.lock import LockManager as LockManager
from pelton.locks.lock import Semaphore as Semaphore
from pelton.locks.lock_table import lock_spec as lock_spec
