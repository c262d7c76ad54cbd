"""Celery's results in a bucket, whose keys expire: ``result_backend = "pelton:///shop.pelton"``.

The broker is ``pelton.contrib.kombu``; importing this makes it known to kombu, too.

Design: A caller that waits for a result is subscribed to the bucket's subjects, so that a result arrives when it is
stored, with its value. Such a message may be missed (it is not stored), so that a second without any is followed by a
look into the bucket. The parts of a chord that have ended are keys of their own: a part that is run again, because its
worker was killed, counts once. The last part runs the chord's body while it holds a lock, and notes that it has: a part
that is run again finds that, or, if its worker died before, runs the body.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kombu.utils.compat import register_after_fork

from pelton.api import BucketKeyExistsError, BucketKeyNotFoundError, PeltonError, StoreError
from pelton.contrib.kombu import Transport
from pelton.contrib.process_store import ProcessStore, address_of, mask_secrets, process_store, token

__all__ = ["PeltonResultBackend", "Transport"]

if TYPE_CHECKING:

    class BaseResultConsumer:
        """Waits for results."""

        backend: Any

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def _after_fork(self) -> None: ...

        def on_state_change(self, _meta: Any, _message: Any) -> None:
            """Handle a result."""

    class AsyncBackendMixin:
        """Lets results arrive."""

    class BaseKeyValueStoreBackend:
        """Keeps results as keys and values."""

        app: Any
        accept: Any
        expires: Any
        _pending_results: Any
        _pending_messages: Any

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def __reduce__(self, _args: Any = (), _kwargs: Any = None) -> Any: ...

        def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any: ...

        def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
            """Note a part of a chord that has ended."""

else:
    from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
    from celery.backends.base import BaseKeyValueStoreBackend


RESULTS: Final = "celery_results"
"""The bucket."""
_SUBJECTS: Final = f"$KV.{RESULTS}."
_MARKERS_KEPT_S: Final = 60
_DAY_S: Final = 86_400
_LOCK_S: Final = 30


class ResultConsumer(BaseResultConsumer):
    """Waits for results, for all threads of a process."""

    _connection_errors = (StoreError,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reset()
        if register_after_fork is not None:
            register_after_fork(self, ResultConsumer._after_fork)

    def _reset(self) -> None:
        self._arrived: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        # The tasks, by the keys of their results.
        self._pending: dict[str, str] = {}
        self._store: ProcessStore | None = None
        self._subscription: Any = None

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Begin to wait for a task's result."""
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        store, subscription = self._store, self._subscription
        self._reset()
        if store is not None and store.is_usable:
            store.run(subscription.close)

    def on_after_fork(self) -> None:
        """Forget what the parent process waits for."""
        self._reset()

    def on_wait_for_pending(self, result: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Look once for what is there already."""
        for meta in result._iter_meta(timeout=timeout, **kwargs):
            if meta is not None:
                self.on_state_change(meta, None)

    def consume_from(self, task_id: str) -> None:
        """Wait for a task's result, too."""
        self._pending[self._key_of(task_id)] = task_id
        self._subscribe()

    def cancel_for(self, task_id: str) -> None:
        """Wait for it no longer."""
        # Not under the lock: the garbage collector may call this at any moment.
        self._pending.pop(self._key_of(task_id), None)

    def _key_of(self, task_id: str) -> str:
        return _key(self.backend.get_key_for_task(task_id))

    def drain_events(self, timeout: float | None = None) -> None:
        """Handle the results that have arrived; waits for one, of whatever task."""
        with self._changed:
            if not self._arrived:
                self._changed.wait(timeout)
            arrived = list(self._arrived)
            self._arrived.clear()
        for data in arrived:
            self.on_state_change(self.backend.decode_result(data), None)
        if arrived:
            with self._changed:
                # Another thread may wait for what this one has handled.
                self._changed.notify_all()
        else:
            self._look()

    def _look(self) -> None:
        pending = list(self._pending.values())
        values = self.backend.mget([self.backend.get_key_for_task(task_id) for task_id in pending])
        for value in values:
            if value is not None:
                self.on_state_change(self.backend.decode_result(value), None)

    def _subscribe(self) -> None:
        with self._starting:
            store = self.backend.store
            if self._store is not store:
                self._subscription = store.run(self._subscribe_with(store))
                self._store = store

    def _subscribe_with(self, store: ProcessStore) -> Callable[[], Awaitable[Any]]:
        arrived, changed, pending = self._arrived, self._changed, self._pending
        start = len(_SUBJECTS)

        async def read(subscription: Any) -> None:
            with suppress(PeltonError):
                while (message := await subscription.next()) is not None:
                    if message.data and message.subject[start:] in pending:
                        with changed:
                            arrived.append(message.data)
                            changed.notify_all()

        async def subscribe() -> Any:
            subscription = await store.jet.subscribe(f"{_SUBJECTS}>")
            store.jet.runtime.spawn(read(subscription), "pelton celery results")
            return subscription

        return subscribe


class PeltonResultBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """Keeps results in the bucket ``celery_results`` of a store, each for ``result_expires``, a day by default.

    Celery constructs it, from the ``url`` in ``result_backend``: ``pelton:///folder/shop.pelton``,
    ``pelton://shop.pelton``, ``pelton+nats://host:4222``. ``num_replicas`` in ``result_backend_transport_options`` says
    on how many servers of a cluster a new bucket is kept (1).
    """

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True
    implements_incr = True
    persistent = True
    ResultConsumer = ResultConsumer

    def __init__(self, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(url=url, expires_type=int, **kwargs)
        self.url = url
        self._address = address_of(url or "")
        self._part = threading.local()
        self.result_consumer: ResultConsumer = ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, without its secrets."""
        url = self.url or ""
        shown = url if url.startswith("pelton") else f"pelton+{url}"
        return shown if include_password else mask_secrets(shown)

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url, "expires": self.expires})

    # --- keys and values

    @property
    def store(self) -> ProcessStore:
        """The open store of this process."""
        return process_store(self._address)

    def get(self, key: str | bytes) -> bytes | None:
        """Return a value, or None."""
        return self.mget([key])[0]

    def mget(self, keys: list[str | bytes]) -> list[bytes | None]:
        """Return the values of keys, None for those that there are not."""
        store, bucket = self._bucket()

        async def value(key: str) -> bytes | None:
            try:
                return bytes((await bucket.get(key)).value)
            except BucketKeyNotFoundError:
                return None

        async def values() -> list[bytes | None]:
            return list(await asyncio.gather(*(value(_key(key)) for key in keys)))

        found: list[bytes | None] = store.run(values)
        return found

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Store a value; returns when it is on disk."""
        self._write(key, value, self.expires)

    def delete(self, key: str | bytes) -> None:
        """Remove a key."""
        store, bucket = self._bucket()
        store.run(bucket.purge, _key(key), ttl=_MARKERS_KEPT_S)

    def expire(self, key: str | bytes, value: int | timedelta | None) -> None:
        """Keep a key for ``value`` seconds from now on."""
        current = self.get(key)
        if current is not None:
            self._write(key, current, value)

    def _write(self, key: str | bytes, value: str | bytes, expires: Any) -> None:
        store, bucket = self._bucket()
        data = value.encode() if isinstance(value, str) else bytes(value)
        seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
        store.run(bucket.put, _key(key), data, ttl=max(int(seconds), 1) if seconds else None)

    def _bucket(self) -> tuple[ProcessStore, Any]:
        """Return the open store, and the bucket, created if it is new."""
        store = self.store
        return store, store.bucket(RESULTS, limit_marker_ttl=_MARKERS_KEPT_S, replicas=self._replicas)

    @property
    def _replicas(self) -> int:
        options = self.app.conf.get("result_backend_transport_options") or {}
        return int(options.get("num_replicas", 1))

    # --- chords

    @property
    def _chord_kept(self) -> int:
        """For how many seconds the state of a chord is kept: Celery says so from 5.6 on."""
        return int(getattr(self, "chord_expires", None) or _DAY_S)

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        group, parts = header_result_args[:2]
        chord = _text(self.get_key_for_chord(group))
        self._write(f"{chord}/size", str(len(parts)), self._chord_kept)
        return super()._apply_chord_incr(header_result_args, body, **kwargs)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a part of a chord that has ended, and run the chord's body after the last."""
        if not request.group:
            return
        chord = _text(self.get_key_for_chord(request.group))
        kept = self._chord_kept
        store, bucket = self._bucket()
        with suppress(BucketKeyExistsError):
            store.run(bucket.create, _key(f"{chord}.{request.id}"), b"1", ttl=kept)
        size = int((request.chord or {}).get("chord_size") or self.get(f"{chord}/size") or 0)
        if self._ended_parts(chord) < size:
            return
        with store.blocking.lock(f"celery.{_key(chord)}", ttl=_LOCK_S):
            if self.get(f"{chord}/done") is not None:
                return
            self._part.number = self._ended_parts(chord)
            super().on_chord_part_return(request, state, result, **kwargs)
            if self._part.number >= size > 0:
                self._write(f"{chord}/done", b"1", kept)

    def incr(self, key: str | bytes) -> int:
        """Return how many parts of the chord have ended, of which this one was counted before."""
        return int(self._part.number)

    def _ended_parts(self, chord: str) -> int:
        store, bucket = self._bucket()

        async def number() -> int:
            return len([key async for key in bucket.keys(f"{_key(chord)}.*")])

        return int(store.run(number))

    def process_cleanup(self) -> None:
        """Keep the store open: others of this process use it."""


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


def _key(key: str | bytes) -> str:
    return ".".join(token(part) for part in _text(key).split("."))
