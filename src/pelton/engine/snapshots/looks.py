"""Looks through a whole stream, each on a thread and a snapshot of its own: no publisher waits for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from pelton.api import Request, api_error
from pelton.api.requests import FindMessages, SubjectTotals
from pelton.engine.snapshots.sql_snapshot import SqlSnapshot
from pelton.storage import DamagedRowError, Database
from pelton.streams import Look, StreamLog, find_messages, subject_totals

R = TypeVar("R")
LOOKS: Final[dict[type[Request[Any]], Callable[[Look, Any], Any]]] = dict(
    (FindMessages.answered_by(find_messages), SubjectTotals.answered_by(subject_totals))
)
"""The requests that are answered so."""
_LONGEST_S: Final = 60.0


async def look(reading: Callable[[float], SqlSnapshot], log: StreamLog, request: Request[R]) -> R:
    """Answer a request about a stream. Raises StreamNotFoundError, StoreBusyError."""

    def answer(database: Database) -> R:
        # Nothing else of what streams need is asked by a look.
        there = StreamLog(replace(log.state.env, database=database), log.id, log.config, log.created)
        try:
            there.load()
        except DamagedRowError:
            # It was whole before the snapshot, so it was deleted meanwhile.
            raise api_error("JSStreamNotFoundErr", stream=log.name) from None
        reply: R = LOOKS[type(request)](Look(there, snapshot.clock, snapshot.is_over), request)
        return reply

    snapshot = reading(_LONGEST_S)
    try:
        await snapshot.enter()
        return await snapshot.look(answer)
    finally:
        await snapshot.leave()
