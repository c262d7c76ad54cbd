"""Signals for a call that blocks the main thread until it is stopped.

The event loop never runs on the main thread here, but signals are only handled there: so the blocking caller
handles them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pelton.runtime import StopSignals


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first SIGTERM or SIGINT without another handler, if this is the main thread."""
    signals = StopSignals(stop)
    signals.take()
    try:
        yield
    finally:
        signals.give_back()
