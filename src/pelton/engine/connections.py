"""Opens connections to one store, and sessions on them, for the engine that has it open.

**The token floor of a store, from which every fencing token is counted, so that tokens only grow.** A delivery's token
is the store's token floor plus the number of the delivery, which its consumer counts. The floor never decreases, and it
is raised, durably, whenever a number could be given a second time:

- Deliveries are not synced before they are handed out (losing one only means delivering again). So the first process
  that opens the store after the machine has started again raises the floor by ``TOKEN_EPOCH``, far more than a power
  loss can take back. The same happens in copies of a store, which continue independently.
- A consumer created under the name of a deleted one numbers its deliveries from 1 again. So deleting consumers, in any
  way, raises the floor by the highest number that one of them has given (``session/consumers.py``), and so does a
  reset, after which a consumer numbers them from 1 again, too. A consumer keeps the floor it was created or reset at: a
  token not above it belongs to an earlier consumer of that name.

All processes load the new floor at once, because raising it also increments the version of the catalogue.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from pelton.api import (
    AccountLimits,
    ConsumerBacklogs,
    ConsumerUnsettled,
    MinuteNote,
    MinuteNotes,
    StreamFill,
    StreamLastHeaders,
    StreamLastMessages,
    UnsettledGroups,
)
from pelton.api.backend import Planning, StoreTroubles
from pelton.consumers import ConsumerLog
from pelton.engine.bus import Bus, Peers
from pelton.engine.host import public_error
from pelton.engine.session import Session, StoreClock, Surroundings
from pelton.runtime import Runtime, boot_id
from pelton.storage import (
    OWNER_ONLY,
    CopiedDatabase,
    Database,
    Fault,
    Medium,
    ReadOnlyDatabase,
    SyncMode,
    integers,
    raise_token_floor,
)
from pelton.storage.damage import damage_known
from pelton.storage.schema import REPLACED_BY
from pelton.storage.wal import SyncFile, WriteFile, sync_to_disk, write_to


class EngineSettings(msgspec.Struct, frozen=True):
    """How one process uses a store. ``interval`` and ``busy_timeout`` in seconds; ``mode`` of a new file."""

    path: str
    memory: bool = False
    sync: SyncMode = "commit"
    interval: float = 0.1
    busy_timeout: float = 30.0
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    sync_file: SyncFile = sync_to_disk
    write_file: WriteFile = write_to
    key: bytes | None = None
    vfs: str | None = None
    mode: int = OWNER_ONLY

    def __repr__(self) -> str:
        # The key is a secret.
        return f"EngineSettings({self.path!r})"


PLANNING: Final = Planning(
    overlapping_pulls=False,
    consumer_timeout=None,
    atomic_batches=True,
    refuses_late_acks=True,
    has_exclusive_subjects=True,
    own_verbs=frozenset(
        {
            ConsumerBacklogs,
            ConsumerUnsettled,
            MinuteNote,
            MinuteNotes,
            StreamFill,
            StreamLastHeaders,
            StreamLastMessages,
            UnsettledGroups,
        }
    ),
    steady_time=True,
)
"""The capabilities of every embedded store, for callers to plan with."""


def move_after_restart(database: Database, boot: Callable[[], str] = boot_id) -> None:
    """Raise the store's token floor if the machine was started since the store was last opened."""
    now = boot()
    with database.reading():
        if now and database.value("SELECT value FROM meta WHERE key='boot'") == now:
            return
    with database.writing():
        # If the run of the machine is unknown, every opening raises the floor: safe, and 23 bits last long.
        if not now or database.value("SELECT value FROM meta WHERE key='boot'") != now:
            raise_token_floor(database)
            database.execute("UPDATE meta SET value=? WHERE key='boot'", (now,))


class Connections:
    """Opens connections with the current key of the store.

    ``ended`` is called with the fault that has ended one of them for good, on the thread that met it; ``on_jump`` when
    the wall clock has jumped.
    """

    settings: EngineSettings

    def __init__(
        self, settings: EngineSettings, runtime: Runtime, ended: Callable[[Fault], None], on_jump: Callable[[], None]
    ) -> None:
        if not settings.memory:
            # SQLite names its log after the file itself, not after a link to it; and the working directory may change.
            settings = msgspec.structs.replace(settings, path=os.path.realpath(settings.path))
        self.settings = settings
        self._runtime = runtime
        self._ended = ended
        self._on_jump = on_jump
        self._keying = threading.Lock()

    def first(self) -> Database:
        """Open the connection of shared transactions, whose commits are acknowledged."""
        try:
            database = self.database(Medium(self.settings.sync_file, self.settings.write_file))
            try:
                move_after_restart(database)
                StoreClock(self._runtime.clock, self._on_jump).begin(database)
            except BaseException:
                database.close()
                raise
        except Fault as fault:
            raise public_error(fault) from None
        return database

    def database(self, medium: Medium | None = None) -> Database:
        """Open a connection. Raises ``Fault``."""
        settings = self.settings
        path, memory, mode = settings.path, settings.memory, settings.mode
        database = Database(path, memory=memory, key=settings.key, vfs=settings.vfs, mode=mode, medium=medium)
        database.ending.tell(self._ended)
        return database

    def reading(self) -> ReadOnlyDatabase:
        """Open a connection that only reads. Raises ``Fault``."""
        with self.unchanged() as settings:
            return ReadOnlyDatabase(settings.path, key=settings.key, vfs=settings.vfs)

    def copy_memory(self) -> ReadOnlyDatabase:
        """Copy a store in memory. Raises ``Fault`` of kind ``busy`` while somebody writes."""
        return CopiedDatabase(self.settings.path)

    def session(
        self,
        database: Database,
        peers: Peers,
        *,
        has_waiters: Callable[[], bool],
        waiting_pulls: Callable[[ConsumerLog], int],
        of: Bus | None = None,
    ) -> Session:
        """Return a session on a connection; ``of`` is the first session's bus if users hold transactions open on it."""
        random, runtime = self._runtime.random, self._runtime
        bus = Bus(database, peers, random.choice, of)
        clock, new_id, limits = StoreClock(runtime.clock, self._on_jump), runtime.ids.new, self.settings.limits
        near = Surroundings(clock.now, random.randrange, new_id, has_waiters, waiting_pulls, limits, clock)
        return Session(database, bus, near)

    def limit(self, limits: AccountLimits) -> None:
        """Open later sessions with other limits."""
        with self._keying:
            self.settings = msgspec.structs.replace(self.settings, limits=limits)

    @contextmanager
    def unchanged(self) -> Iterator[EngineSettings]:
        """Keep the key from changing during the block, so that a clone opens with the right one on any thread."""
        with self._keying:
            yield self.settings

    @contextmanager
    def changing_key(self, key: bytes) -> Iterator[None]:
        """Open later connections with another key, if the block encrypts the store with it without an error."""
        with self._keying:
            yield
            self.settings = msgspec.structs.replace(self.settings, key=key)


_QUARANTINED = "SELECT stream, seq FROM quarantine"


def troubles_of(database: Database) -> StoreTroubles:
    """Return the damaged messages that are known, and what this connection has met."""
    met = database.troubles
    # Whoever removes a damaged message leaves the row.
    rows = [integers(row) for row in database.execute(_QUARANTINED).fetchall()]
    quarantined = sum(database.value(f"SELECT count(*) FROM m_{stream} WHERE seq=?", (seq,)) for stream, seq in rows)
    return StoreTroubles(
        quarantined=quarantined,
        damaged=max(quarantined, len(damage_known(database.path))),
        slow_syncs=met.slow_syncs,
        slowest_sync=met.slowest_sync,
        writer_waits=met.writer_waits,
        longest_writer_wait=met.longest_writer_wait,
        blocked_checkpoints=met.blocked_checkpoints,
        replaced_by=database.value("SELECT value FROM meta WHERE key=?", (REPLACED_BY,)) or "",
    )
