"""Redrives dead letters: those that a DataFrame selects go back to their queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pelton.api import ConfigError, JobNotFoundError
from pelton.spark.pipelines.queue_tables import queue_store
from pelton.spark.store_handle import StoreHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pelton.connect import Jet
    from pelton.queue import Queue

_AT_ONCE: Final = 64

Progress = Callable[[int, int], None]


class Redriven(NamedTuple):
    """How many dead letters were redriven, and how many were gone already (redriven by another process, or removed)."""

    redriven: int
    gone: int


def redrive(letters: DataFrame, queue: str, *, progress: Progress | None = None, **store: str) -> Redriven:
    """Put the jobs of dead letters into the queue again, and remove them from the dead letters.

    ``letters`` are rows of :func:`dead_letters`, selected with any DataFrame operation; only their ``id`` is used. The
    call can be repeated: a letter that was redriven is gone. ``store`` as in :func:`history`; ``progress`` is called
    with the number done and the total. Raises ConfigError.
    """
    if "id" not in letters.columns:
        raise ConfigError("redrive needs the column id of the dead letters")
    options = queue_store(queue, store)
    ids = sorted({row.id for row in letters.select("id").toLocalIterator()}, key=_by_age)
    with StoreHandle(options) as opened:
        return opened.run(_redrive, opened.jet, queue, ids, progress or _silent)


async def _redrive(jet: Jet, name: str, ids: Sequence[str], progress: Progress) -> Redriven:
    queue = await jet.queue(name)
    done = gone = 0
    for first in range(0, len(ids), _AT_ONCE):
        found = await asyncio.gather(*(_one(queue, job_id) for job_id in ids[first : first + _AT_ONCE]))
        done += sum(found)
        gone += len(found) - sum(found)
        progress(done + gone, len(ids))
    return Redriven(done, gone)


async def _one(queue: Queue, job_id: str) -> bool:
    try:
        await queue.redrive(job_id)
    except JobNotFoundError:
        return False
    return True


def _by_age(job_id: str) -> tuple[int, str]:
    """Sort ids that are sequences by age, before the others."""
    return (len(job_id), job_id)


def _silent(done: int, total: int) -> None:
    pass
