"""Pelton without ``await``: the same names, and calls that block until they are done.

with pelton.sync.open("garage.pelton") as jet:
    jet.create_stream("orders", subjects=["orders.>"])
    jet.publish("orders.eu.1", b"...")

Each open store has an event loop on its own thread (``portal.py``); the classes here are derived from the
async ones (``derive.py``), and any number of threads may share a handle. Ctrl-C during a call cancels the operation.
Their signatures for type checkers are in ``__init__.pyi``, written by ``tools/sync_stub.py``.
"""

from __future__ import annotations

import asyncio
import functools
import os
from importlib import import_module
from typing import Any, Final

import pelton
from pelton import connect
from pelton.api import *  # noqa: F403  # the same vocabulary as in pelton itself
from pelton.sync.derive import derive, wrap
from pelton.sync.portal import Portal

# What is derived, some with options; every other public name is the same in both worlds.
_DERIVED: Final = """
    Jet Bucket ObjectStore Stream Consumer Subscription Message Savepoint SqlReads Election Term Lock Semaphore
    LockLease Queue Job AsyncJob BatchJob SyncJob AsyncContextJob SyncContextJob JobWithOptions QueueWithOptions
    QueueInTransaction Claims JobHandle QueueEvents Flow FlowWithOptions FlowHandle Transaction JobTransaction
"""
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "Jet": {"ends_portal": "close", "opens": ("clone", "domain")},
    "ObjectStore": {"as_given": ("put", "get_file")},
    "Queue": {"stops": {"work": "stop"}},
}

__all__ = [name for name in pelton.__all__ if name != "sync"]
globals().update({name: getattr(import_module(room), name) for name, room in pelton._ROOM_OF.items()})
globals().update({name: derive(getattr(pelton, name), **_OPTIONS.get(name, {})) for name in _DERIVED.split()})
# What a plain function is given, in either world.
JobContext: Final = import_module("pelton.queue.run.blocking").BlockingContext


@functools.wraps(connect.open)
def open(address: str | os.PathLike[str], **options: Any) -> Any:
    """Open a store, as :func:`pelton.open` does, and return it; close it, or use it in a ``with``."""
    opening = connect.open(address, **options)
    portal = Portal(os.fspath(address))
    try:
        return wrap(portal.run(lambda: opening), portal)
    except BaseException:
        portal.stop()
        raise


def on_loop(jet: connect.Jet, loop: asyncio.AbstractEventLoop) -> Any:
    """Return the blocking face of an open store, for threads other than the thread of its running ``loop``."""
    return wrap(jet, Portal("the worker's store", loop))
