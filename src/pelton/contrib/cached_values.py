"""Values that expire, in a bucket: what the caches of frameworks are made of.

A value carries when it expires, to the nanosecond; the bucket removes it within two seconds after that. Writes are on
disk when they return, and every process sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pelton.api import BucketKeyExistsError, BucketKeyNotFoundError, BucketNotFoundError, WrongLastSequenceError
from pelton.contrib.process_store import ProcessStore, process_store
from pelton.contrib.tokens import short_token

_EXPIRY: Final = struct.Struct(">q")
_MARKERS_KEPT_S: Final = 1


class CachedValues:
    """The values of one bucket of a store, created if it is new. Times are in seconds; None: for ever."""

    def __init__(self, store: str, bucket: str) -> None:
        self._address = store
        self._name = bucket
        self._opened: tuple[ProcessStore, Any] | None = None

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none, or it has expired."""
        return self._read(key)[0]

    def put(self, key: str, value: bytes, timeout: float | None) -> None:
        """Store a value; one that expires at once is removed."""
        self._write(key, value, self._expiry(timeout), None)

    def add(self, key: str, value: bytes, timeout: float | None) -> bool:
        """Store a value if there is none; return whether it was stored."""
        while True:
            found, revision, _ = self._read(key)
            if found is not None:
                return False
            with suppress(WrongLastSequenceError, BucketKeyExistsError):
                self._write(key, value, self._expiry(timeout), revision)
                return True

    def touch(self, key: str, timeout: float | None) -> bool:
        """Let a value expire at another time; return whether there is one."""
        return self._change(key, lambda value, expiry: (value, self._expiry(timeout))) is not None

    def replace(self, key: str, change: Callable[[bytes], bytes]) -> bytes | None:
        """Replace a value by what is made of it, at no other time to expire; return it, or None if there is none.

        ``change`` is called again if another process changes it meanwhile.
        """
        return self._change(key, lambda value, expiry: (change(value), expiry))

    def remove(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        while True:
            found, revision, _ = self._read(key)
            if found is None:
                return False
            with suppress(WrongLastSequenceError):
                self._remove(key, revision)
                return True

    def clear(self) -> None:
        """Remove all values."""
        store, _ = self._bucket()
        store.blocking.stream(f"KV_{self._name}").purge()

    def _change(self, key: str, change: Callable[[bytes, int], tuple[bytes, int]]) -> bytes | None:
        while True:
            found, revision, expiry = self._read(key)
            if found is None:
                return None
            value, expiry = change(found, expiry)
            with suppress(WrongLastSequenceError):
                self._write(key, value, expiry, revision)
                return value

    def _read(self, key: str) -> tuple[bytes | None, int, int]:
        """Return a value, its revision (0: there is none, not even one that has expired), and when it expires."""
        store, bucket = self._bucket()
        try:
            entry = store.run(bucket.get, short_token(key))
        except BucketKeyNotFoundError:
            return None, 0, 0
        (expiry,) = _EXPIRY.unpack_from(entry.value)
        if expiry and expiry <= store.jet.runtime.clock.now():
            return None, entry.revision, 0
        return bytes(entry.value[_EXPIRY.size :]), entry.revision, expiry

    def _write(self, key: str, value: bytes, expiry: int, revision: int | None) -> None:
        if expiry < 0:
            self._remove(key, revision or None)
            return
        store, bucket = self._bucket()
        data = _EXPIRY.pack(expiry) + value
        left = (expiry - store.jet.runtime.clock.now()) / 1e9
        ttl = max(int(left) + 1, 1) if expiry else None
        if revision is None:
            store.run(bucket.put, short_token(key), data, ttl=ttl)
        elif revision == 0:
            store.run(bucket.create, short_token(key), data, ttl=ttl)
        else:
            store.run(bucket.update, short_token(key), data, revision, ttl=ttl)

    def _remove(self, key: str, revision: int | None) -> None:
        store, bucket = self._bucket()
        store.run(bucket.purge, short_token(key), revision=revision, ttl=_MARKERS_KEPT_S)

    def _expiry(self, timeout: float | None) -> int:
        """Return when a value expires, in wall nanoseconds; 0: never, -1: at once."""
        if timeout is None:
            return 0
        return -1 if timeout <= 0 else process_store(self._address).jet.runtime.clock.now() + int(timeout * 1e9)

    def _bucket(self) -> tuple[ProcessStore, Any]:
        store = process_store(self._address)
        if self._opened is None or self._opened[0] is not store:
            try:
                bucket = store.run(store.jet.bucket, self._name)
            except BucketNotFoundError:
                bucket = store.run(store.jet.create_bucket, self._name, limit_marker_ttl=_MARKERS_KEPT_S)
            self._opened = store, bucket
        return self._opened
