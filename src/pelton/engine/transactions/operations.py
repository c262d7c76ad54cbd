"""The operations of a transaction that its user holds open, on a session of its own.

The session has its own connection and registry, as another process would: uncommitted changes are visible only through
it. The effects of the commit reach others through the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pelton.api import AckOp, DirectGet, DirectReply, Outgoing, PeltonError, PubAck
from pelton.consumers import Settlement
from pelton.engine.direct import DirectGets
from pelton.engine.session import Session, SessionMark
from pelton.engine.transactions.submissions import all_stored, make_ready, store, store_plain
from pelton.storage import Database, PlacedSums, UserSql, Writer
from pelton.storage.user_sql import Bindings
from pelton.streams import Packed, is_bare


class _OpenSettlement(NamedTuple):
    """Acks of one consumer that were checked, and are not written yet."""

    stream: str
    consumer: str
    settlement: Settlement


class Operations:
    """Runs the operations of one transaction at a time. ``is_late`` returns whether it has exceeded its timeout.

    ``busy_timeout`` (seconds) bounds the wait for the writer.
    """

    def __init__(self, session: Session, is_late: Callable[[], bool], busy_timeout: float) -> None:
        self.session = session
        self.db: Database = session.db
        self.writer: Writer = Writer(self.db, busy_timeout)
        self._direct = DirectGets(session)
        self._sql = UserSql(self.db, is_late)
        self._settling: _OpenSettlement | None = None

    def began(self) -> None:
        """Load what others have written: the transaction was just opened."""
        self.db.fold_on_commit(True)
        self.session.began()

    def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Append all messages, or none."""
        self._settle_up()
        stored = store_plain(self.session, messages)
        if stored is not None:
            return stored
        if len(messages) <= 1 or self._is_sure(messages):
            return all_stored(store(self.session, messages, "until refused"))
        mark = self.mark()
        try:
            acks = all_stored(store(self.session, messages, "until refused"))
        except PeltonError:
            self.go_back(mark)
            raise
        self.keep(mark)
        return acks

    def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Append messages, each answered by itself."""
        self._settle_up()
        return store(self.session, messages, "apart")

    def load(self, packed: Packed, sums: PlacedSums) -> None:
        """Append messages without headers, or none."""
        logs = self.session.registry.routes.find_all(packed.subjects)
        log = logs.pop() if len(logs) == 1 else None
        if log is None or not log.appender.takes_packed or self.session.bus.has_subscriptions:
            self.publish(packed.messages())
            self.flush()
            return
        self._settle_up()
        now = self.session.now()
        make_ready(self.session, log, now)
        log.appender.append_packed(packed, now, sums)

    def _is_sure(self, messages: Sequence[Outgoing]) -> bool:
        """Whether none of these messages can be refused."""
        logs = self.session.registry.routes.find_all({message.subject for message in messages})
        plain = all(log is not None and log.appender.is_plain for log in logs)
        return plain and all(is_bare(message.headers) for message in messages)

    def ack(self, stream: str, name: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; acks of one consumer that follow each other are written together.

        The rest of the transaction depends on them, so an ack without effect, harmless by itself, is refused here.
        """
        settling = self._settling
        if settling is None or (settling.stream, settling.consumer) != (stream, name):
            self._settle_up()
            registry = self.session.registry
            settlement = registry.settlement(registry.consumer(stream, name), self.session.now())
            settling = self._settling = _OpenSettlement(stream, name, settlement)
        return settling.settlement.take(acks)

    def _settle_up(self) -> None:
        if self._settling is not None:
            self._settling.settlement.write()
            self._settling = None

    def flush(self) -> None:
        """Write what the transaction holds in memory."""
        self._settle_up()
        self.session.flush()

    def sql(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        """Run a user's SQL."""
        return self._sql.run(statement, bindings)

    def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream."""
        return self._direct.clean_and_look(stream, request)

    def roll_back(self) -> None:
        """Roll back the whole transaction."""
        self._settling = None
        self.session.roll_back()
        self.writer.roll_back()

    # --- going back within a transaction

    def mark(self) -> SessionMark:
        """Set a savepoint."""
        self._settle_up()
        return self.session.mark()

    def keep(self, mark: SessionMark) -> None:
        """Release a savepoint, and keep what was done since."""
        self.session.keep(mark)

    def go_back(self, mark: SessionMark) -> None:
        """Roll back to a savepoint, and release it."""
        self._settling = None
        self.session.go_back(mark)
