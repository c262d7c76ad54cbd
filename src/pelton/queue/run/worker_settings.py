"""How a worker works."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from pelton.queue.model.checks import seconds, whole

if TYPE_CHECKING:
    from pelton.api.times import Seconds


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. ``grace`` in seconds; after ``max_jobs`` it takes no more.

    ``until_empty``: until no job is left; ``until_idle``: until none can start now. ``on_error`` as for `HeldJobs`.
    ``on_idle`` is called when none can start now, with the seconds until one may (infinity: not known); while it
    returns true, the worker looks again.
    """

    concurrency: int = 8
    until_empty: bool = False
    until_idle: bool = False
    on_error: Callable[[str, BaseException], None] | None = None
    on_idle: Callable[[float], bool] | None = None
    handle_signals: bool = True
    grace: float = 30.0
    max_jobs: int | None = None


def worker_settings(
    queue: str,
    concurrency: int,
    ends: tuple[bool, bool],
    handle_signals: bool,
    grace: Seconds,
    max_jobs: int | None,
    on_error: Callable[[str, BaseException], None] | None,
    on_idle: Callable[[float], bool] | None,
) -> WorkerSettings:
    """Return checked settings; ``ends``: until empty, until idle. Raises ConfigError."""
    until_empty, until_idle = ends
    return WorkerSettings(
        concurrency=whole(f"queue {queue!r}: concurrency", concurrency),
        until_empty=until_empty,
        until_idle=until_idle,
        on_error=on_error,
        on_idle=on_idle,
        handle_signals=handle_signals,
        grace=seconds(f"queue {queue!r}: grace", grace),
        max_jobs=None if max_jobs is None else whole(f"queue {queue!r}: max_jobs", max_jobs),
    )
