"""Disks that fail when told: what an engine is given in place of the real way of syncing.

Pass one as ``EngineSettings(path, sync_file=FaultySync())``. It syncs nothing by itself: a test never needs a
power loss survived, and is faster without.
"""

from __future__ import annotations

import errno
import os
import threading


class FaultySync:
    """A ``sync_file`` that succeeds until :attr:`broken`, and counts its calls in :attr:`calls`.

    While :attr:`gate` is not set, a sync on another thread than the main one waits for it, as on a slow disk (the
    engine syncs large groups on a thread of its own).
    """

    def __init__(self) -> None:
        """A disk that works, at once."""
        self.broken = False
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, descriptor: int) -> None:
        """Pretend to sync. Raises OSError (input/output error) once broken."""
        self.calls += 1
        if threading.current_thread() is not threading.main_thread():
            self.gate.wait()
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
