"""A store or cluster as a whole."""

from __future__ import annotations

import os

from pelton.connect import Jet
from pelton.observe.streams import QUEUE_MARK, kind_of, stream_infos
from pelton.observe.summaries import StoreSummary


async def store_summary(jet: Jet, path: str = "") -> StoreSummary:
    """Return the sums over all streams; ``path`` is the file of the store, if it has one."""
    infos = await stream_infos(jet)
    names = [info.config.name for info in infos]
    return StoreSummary(
        streams=len(infos),
        consumers=sum(info.state.consumer_count for info in infos),
        messages=sum(info.state.messages for info in infos),
        bytes=sum(info.state.bytes for info in infos),
        queues=sum(QUEUE_MARK in info.config.metadata for info in infos),
        buckets=sum(kind_of(info.config) == "bucket" for info in infos),
        object_stores=sum(name.startswith("OBJ_") for name in names),
        file_bytes=_size(path),
        log_bytes=_size(f"{path}-wal") if path else 0,
    )


def _size(path: str) -> int:
    try:
        return os.path.getsize(path) if path else 0
    except OSError:
        return 0
