"""What the frameworks' modules share: one open store per process, any text as a token, values that expire.

**One open store per process and address, for frameworks that construct their parts again and again.** Connections,
backends and caches of a framework share it, from any thread. It stays open until the process ends; a forked child opens
its own, and a store that has failed for good is opened again by the next who asks.

**Values that expire, in a bucket: what the caches of frameworks are made of.** A value carries when it expires, to the
nanosecond; the bucket removes it within two seconds after that. Writes are on disk when they return, and every process
sees them.
"""

from __future__ import annotations

import atexit
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from threading import RLock
from typing import Any, Final

from pelton import sync
from pelton.api import BucketKeyExistsError, BucketKeyNotFoundError, BucketNotFoundError, WrongLastSequenceError
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.sync.derive import wrap
from pelton.sync.portal import Portal

__all__ = ["close_process_stores"]

_stores: Final[dict[str, ProcessStore]] = {}
# Stores of a parent process: never used and never let go of, so that nothing of the parent's is closed here.
_inherited: Final[list[ProcessStore]] = []
_opening = RLock()


class ProcessStore:
    """An open store: ``jet`` lives on the event loop of ``portal``; ``blocking`` is the same for plain code."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.portal: Portal = Portal(address)
        self._ended = False
        opening = open_store(address)
        try:
            self.jet: Jet = self.portal.run(lambda: opening)
            self.portal.run(self.jet.backend.on_end, self._end)
        except BaseException:
            self.portal.stop()
            raise
        self.blocking: sync.Jet = wrap(self.jet, self.portal)
        self._buckets: dict[str, Any] = {}

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the store's event loop, await what it returns, and return that."""
        return self.portal.run(function, *args, **kwargs)

    def bucket(self, name: str, **config: Any) -> Any:
        """Return a bucket, made with ``config`` if it is missing."""
        if name not in self._buckets:
            try:
                self._buckets[name] = self.run(self.jet.bucket, name)
            except BucketNotFoundError:
                self._buckets[name] = self.run(self.jet.create_bucket, name, **config)
        return self._buckets[name]

    def start_later(self, function: Callable[[], object]) -> None:
        """Call a function on the store's event loop, soon; from any thread, without waiting."""
        self.portal.start_later(function)

    @property
    def is_usable(self) -> bool:
        """Whether this process may use it: it has not failed, is not closed, and was not inherited."""
        return self.portal.is_usable and not self._ended

    def close(self) -> None:
        """Close it; the next caller opens it again."""
        with _opening:
            if _stores.get(self.address) is self:
                del _stores[self.address]
        self.blocking.close()

    def _end(self, error: Exception) -> None:
        self._ended = True


def process_store(address: str | os.PathLike[str]) -> ProcessStore:
    """Return this process's open store at an address: a path, or what else `pelton.open` takes."""
    text = os.fspath(address)
    if "://" not in text and not text.startswith(("memory:", "context:")):
        # The program may change its folder before it asks again.
        text = os.path.abspath(text)
    with _opening:
        found = _stores.get(text)
        if found is None or not found.is_usable:
            found = _stores[text] = ProcessStore(text)
        return found


def address_of(url: str) -> str:
    """Return the store that a framework's URL names: ``pelton:///shop.pelton``, ``pelton+nats://host:4222``."""
    if url.startswith("pelton+"):
        return url.removeprefix("pelton+")
    return url.removeprefix("pelton://")


def mask_secrets(url: str) -> str:
    """Return a URL without its secrets: passwords and tokens. It may have several hosts."""
    scheme, separator, rest = url.partition("://")
    logins, at, hosts = rest.rpartition("@")
    user, colon, _ = logins.partition(":")
    return f"{scheme}{separator}{user if colon else ''}{colon}**{at}{hosts}" if at else url


@atexit.register
def close_process_stores() -> None:
    """Close the stores that the parts of frameworks share in this process; the next caller opens them again.

    The end of the process does this by itself: call it in tests, or before a file is moved.
    """
    for store in list(_stores.values()):
        store.close()


def _after_fork_in_child() -> None:
    global _opening
    _inherited.extend(_stores.values())
    _stores.clear()
    _opening = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# --- any text as one token of a subject, or of a bucket's key. Pure

_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-/")
_LONGEST: Final = 200


def token(text: str) -> str:
    """Return a text with unusual characters as ``=XX``, which can be read back; empty text as ``=``."""
    return "".join(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in text.encode()) or "="


def short_token(text: str) -> str:
    """Return `token` of a text, and the digest of one that is too long for a key."""
    whole = token(text)
    return whole if len(whole) <= _LONGEST else f"sha256={sha256(text.encode()).hexdigest()}"


_EXPIRY: Final = struct.Struct(">q")
_MARKERS_KEPT_S: Final = 1


class CachedValues:
    """The values of one bucket of a store, created if it is new. Times are in seconds; None: for ever."""

    def __init__(self, store: str, bucket: str) -> None:
        self._address = store
        self._name = bucket

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
        return store, store.bucket(self._name, limit_marker_ttl=_MARKERS_KEPT_S)
