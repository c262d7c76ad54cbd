"""Keeps Python's collector of cyclic garbage from stopping a process for long that has many objects.

Design: a full collection looks at every object: a tenth of a second for a quarter of a million subscriptions, in which
no client is answered. What has survived one is *frozen*, so that the next one looks at what is new. What becomes
cyclic garbage while it is frozen is found when all is looked at again, once an hour; what is in no cycle is freed at
once as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any, Final

_EVERY_S: Final = 3600.0
_FULL: Final = 2


class ShortCollections:
    """For a process of its own: the collector is everybody's. ``now`` is seconds of the monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.on_collection)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self.on_collection)
        gc.unfreeze()

    def on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        """Freeze what has survived a full collection, or let the next one look at everything."""
        if phase != "stop" or info["generation"] != _FULL:
            return
        if self._now() - self._since < _EVERY_S:
            gc.freeze()
        else:
            self._since = self._now()
            gc.unfreeze()
