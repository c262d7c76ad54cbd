"""How a worker works."""

from __future__ import annotations

import msgspec


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. ``grace`` in seconds."""

    concurrency: int = 8
    until_empty: bool = False
    handle_signals: bool = True
    grace: float = 30.0
