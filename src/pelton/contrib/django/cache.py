"""A cache for Django.

In the settings: ``CACHES = {"default": {"BACKEND": "pelton.contrib.django.cache.PeltonDjangoCache", "LOCATION":
"shop.pelton"}}``.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT

from pelton.contrib.process_store import CachedValues

__all__ = ["PeltonDjangoCache"]

if TYPE_CHECKING:

    class BaseCache:
        """What type checkers take for Django's class, which has no type information."""

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    from django.core.cache.backends.base import BaseCache


class PeltonDjangoCache(BaseCache):
    """Keeps values, pickled, in a bucket: ``django_cache``, or the ``bucket`` of ``OPTIONS``.

    Django constructs it: ``location`` is ``LOCATION`` of the setting, a file, or ``nats://host:4222``, and ``params``
    is the rest of it. Each ``timeout`` is in seconds; None: for ever. A ``version`` is part of the key. Every operation
    raises PeltonError if the store cannot be used.
    """

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._values = CachedValues(str(location), params.get("OPTIONS", {}).get("bucket", "django_cache"))

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Store a value if there is none; return whether it was stored."""
        return self._values.add(self._key(key, version), pickle.dumps(value), self._seconds(timeout))

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """Return a value, or the default."""
        value = self._values.get(self._key(key, version))
        return default if value is None else pickle.loads(value)

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        """Store a value."""
        self._values.put(self._key(key, version), pickle.dumps(value), self._seconds(timeout))

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Let a value expire at another time; return whether there is one."""
        seconds = self._seconds(timeout)
        if seconds is not None and seconds <= 0:
            return self.delete(key, version)
        return self._values.touch(self._key(key, version), seconds)

    def delete(self, key: str, version: int | None = None) -> bool:
        """Remove a value; return whether there was one."""
        return self._values.remove(self._key(key, version))

    def has_key(self, key: str, version: int | None = None) -> bool:
        """Whether there is a value."""
        return self._values.get(self._key(key, version)) is not None

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        """Add to a number, also beside other processes; return the new one. Raises ValueError for a missing key."""
        changed = self._values.replace(self._key(key, version), lambda value: pickle.dumps(pickle.loads(value) + delta))
        if changed is None:
            raise ValueError(f"Key {key!r} not found")
        return int(pickle.loads(changed))

    def clear(self) -> None:
        """Remove all values of the bucket."""
        self._values.clear()

    def _key(self, key: str, version: int | None) -> str:
        return str(self.make_and_validate_key(key, version=version))

    def _seconds(self, timeout: Any) -> float | None:
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else float(timeout)
