"""A stream inside a transaction: its state, appender, remover and reader.

All durable state is in rows; :class:`~pelton.streams.state.StreamState` caches the small ones and buffers what the open
transaction has appended. The appender's ``flush`` writes the buffer; anything that reads message rows writes those
first. After another process has written, or after a rollback, the cache is read again.
"""

from __future__ import annotations

from pelton.api import StreamConfig
from pelton.storage import FastGet
from pelton.storage.messages import MessageTable
from pelton.streams.appender import Appender
from pelton.streams.checked_bulk import CheckedBulk
from pelton.streams.copier import Copier
from pelton.streams.env import StreamEnv
from pelton.streams.reader import Reader
from pelton.streams.remover import Remover
from pelton.streams.state import StreamState
from pelton.streams.ticking import pass_time


class StreamLog:
    """The stream with row id ``stream`` and configuration ``config``, ``created`` at a time."""

    def __init__(self, env: StreamEnv, stream: int, config: StreamConfig, created: int) -> None:
        self.id = stream
        self.name: str = config.name
        self.created = created
        self.state: StreamState = StreamState(env, stream, config)
        self.table: MessageTable = self.state.table
        self.fast_get: FastGet = FastGet(env.database, stream)
        self.reader: Reader = Reader(self.state)
        self.remover: Remover = Remover(self.state, self.reader)
        self.appender: Appender = Appender(self.state, self.reader, self.remover)
        self.checked_bulk: CheckedBulk = CheckedBulk(self.appender, self.reader)
        self.copier: Copier = Copier(self.appender)

    @property
    def config(self) -> StreamConfig:
        """Its configuration."""
        return self.state.config

    def configure(self, config: StreamConfig) -> None:
        """Apply a (changed) configuration; its limits take effect with the next flush."""
        self.state.configure(config)
        self.appender.configure(config)

    def advance(self, now: int) -> None:
        """Apply everything that is due (``ticking.py``); call it before anything reads or writes the stream.

        Raises SnapshotOnlyError if something is due in a snapshot.
        """
        if self.state.is_overdue(now):
            self.state.db.check_changing()
            pass_time(self.appender, self.remover, now)
