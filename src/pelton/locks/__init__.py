"""Locks, semaphores and elections: leases in a key-value bucket, on every backend."""
