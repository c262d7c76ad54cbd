"""A cache for Flask-Caching and others that use cachelib: ``PeltonCache("shop.pelton")``."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

from cachelib.base import BaseCache

from pelton.contrib.process_store import CachedValues

__all__ = ["PeltonCache"]


class PeltonCache(BaseCache):  # type: ignore[misc]  # cachelib has no types
    """Keeps values, pickled, in ``bucket`` of a ``store``: a file, or ``nats://host:4222``.

    ``default_timeout`` and each ``timeout`` are in seconds or a ``timedelta``; 0: values do not expire. ``key_prefix``
    stands before every key, so that caches can share a bucket. Every operation raises PeltonError if the store cannot
    be used.
    """

    def __init__(
        self, store: str, bucket: str = "cache", *, default_timeout: int | timedelta = 300, key_prefix: str = ""
    ) -> None:
        super().__init__(default_timeout)
        self._values = CachedValues(store, bucket)
        self._prefix = key_prefix

    def get(self, key: str) -> Any:
        """Return a value, or None."""
        value = self._values.get(self._prefix + key)
        return None if value is None else pickle.loads(value)

    def set(self, key: str, value: Any, timeout: int | timedelta | None = None) -> bool:
        """Store a value, for ``timeout`` seconds; returns True when it is on disk."""
        self._values.put(self._prefix + key, pickle.dumps(value), self._seconds(timeout))
        return True

    def add(self, key: str, value: Any, timeout: int | timedelta | None = None) -> bool:
        """Store a value, for ``timeout`` seconds, if there is none; return whether it was stored."""
        return self._values.add(self._prefix + key, pickle.dumps(value), self._seconds(timeout))

    def delete(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        return self._values.remove(self._prefix + key)

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self._values.get(self._prefix + key) is not None

    def clear(self) -> bool:
        """Remove all values of the bucket, whatever their prefix."""
        self._values.clear()
        return True

    def inc(self, key: str, delta: int = 1) -> int | None:
        """Add to a number, also beside other processes; return the new one. What is missing counts as 0."""
        while True:
            changed = self._values.replace(
                self._prefix + key, lambda value: pickle.dumps((pickle.loads(value) or 0) + delta)
            )
            if changed is not None:
                return int(pickle.loads(changed))
            if self.add(key, delta):
                return delta

    def dec(self, key: str, delta: int = 1) -> int | None:
        """Subtract from a number; see `inc`."""
        return self.inc(key, -delta)

    def _seconds(self, timeout: int | timedelta | None) -> float | None:
        # cachelib below 0.14 knows numbers only.
        whole = timeout if timeout is not None else self.default_timeout
        seconds = whole.total_seconds() if isinstance(whole, timedelta) else whole
        return seconds or None
