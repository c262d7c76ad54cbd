"""How one process uses a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pelton.api import AccountLimits, ConsumerUnsettled, StreamFill, StreamLastHeaders
from pelton.api.backend import Planning
from pelton.storage import OWNER_ONLY, SyncMode
from pelton.storage.wal import SyncFile, WriteFile, sync_to_disk, write_to


@dataclass(frozen=True)
class EngineSettings:
    """How one process uses a store. ``interval`` and ``busy_timeout`` in seconds; ``mode`` of a new file."""

    path: str
    memory: bool = False
    sync: SyncMode = "commit"
    interval: float = 0.1
    busy_timeout: float = 30.0
    limits: AccountLimits = field(default_factory=AccountLimits)
    sync_file: SyncFile = sync_to_disk
    write_file: WriteFile = write_to
    key: bytes | None = field(default=None, repr=False)
    vfs: str | None = None
    mode: int = OWNER_ONLY


PLANNING: Final = Planning(
    overlapping_pulls=False,
    consumer_timeout=None,
    atomic_batches=True,
    refuses_late_acks=True,
    has_exclusive_subjects=True,
    own_verbs=frozenset({ConsumerUnsettled, StreamFill, StreamLastHeaders}),
    steady_time=True,
)
"""The capabilities of every embedded store, for callers to plan with."""
