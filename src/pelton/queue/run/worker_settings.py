"""How a worker works."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. ``grace`` in seconds; after ``max_jobs`` it takes no more.

    ``until_empty``: until no job is left; ``until_idle``: until none can start now. ``on_error`` as for `HeldJobs`.
    """

    concurrency: int = 8
    until_empty: bool = False
    until_idle: bool = False
    on_error: Callable[[str, BaseException], None] | None = None
    handle_signals: bool = True
    grace: float = 30.0
    max_jobs: int | None = None
