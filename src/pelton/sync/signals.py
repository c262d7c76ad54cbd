"""Signals for a call that blocks the main thread until it is told to stop.

An event loop catches signals only on the main thread, and ours never runs there. So the blocking caller
catches them: the first SIGTERM or SIGINT asks for an orderly stop and gives the handlers back, a second one
does what it did before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first SIGTERM or SIGINT; nothing is changed on other threads than the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    restore = _restoring(before)

    def told(number: int, frame: Any) -> None:
        restore()
        stop()

    for number in _SIGNALS:
        signal.signal(number, told)
    try:
        yield
    finally:
        restore()


def _restoring(before: dict[signal.Signals, Any]) -> Callable[[], None]:
    def restore() -> None:
        for number, handler in before.items():
            # None: a handler that was not set from Python, and cannot be set again from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    return restore
