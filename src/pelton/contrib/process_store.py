"""One open store per process and address, for frameworks that construct their parts again and again.

Connections, backends and caches of a framework share it, from any thread. It stays open until the process ends; a
forked child opens its own, and a store that has failed for good is opened again by the next who asks.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from threading import RLock
from typing import Any, Final

from pelton import sync
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.sync.derive import wrap
from pelton.sync.portal import Portal

__all__ = ["close_process_stores"]

_stores: Final[dict[str, ProcessStore]] = {}
# Those of a parent process: never used and never let go of, so that nothing of the parent's is closed here.
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

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the store's event loop, await what it returns, and return that."""
        return self.portal.run(function, *args, **kwargs)

    def start_later(self, function: Callable[[], object]) -> None:
        """Call a function on the store's event loop, soon; from any thread, without waiting."""
        self.portal.start_later(function)

    @property
    def is_usable(self) -> bool:
        """Whether this process may use it: it has not failed, is not closed, and was not inherited."""
        return self.portal.is_usable and not self._ended

    def close(self) -> None:
        """Close it; whoever asks next opens it again."""
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


def masked(url: str) -> str:
    """Return a URL without its secrets: passwords and tokens. It may have several hosts."""
    scheme, separator, rest = url.partition("://")
    logins, at, hosts = rest.rpartition("@")
    user, colon, _ = logins.partition(":")
    return f"{scheme}{separator}{user if colon else ''}{colon}**{at}{hosts}" if at else url


@atexit.register
def close_process_stores() -> None:
    """Close the stores that the parts of frameworks share in this process; whoever asks next opens them again.

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
