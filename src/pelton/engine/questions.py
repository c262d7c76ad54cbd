"""Answering requests: what only asks, in a snapshot; everything else in a transaction shared with other work.

What is due has to be written before an answer leaves it out: a question that meets it is asked again in a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from pelton.api import DirectGet, DirectReply, MsgGet, Request
from pelton.api.codec import names_of
from pelton.api.events import ClientInfo
from pelton.engine.direct import DirectGets
from pelton.engine.host import Host
from pelton.engine.snapshots.sql_snapshot import LOOKS, SqlSnapshot, look
from pelton.engine.transactions.transactions import Transactions
from pelton.engine.verbs.audit import Audit
from pelton.engine.verbs.table import QUESTIONS, READS, answer
from pelton.storage import SnapshotOnlyError

R = TypeVar("R")


class Questions:
    """Answers the requests to one open store; ``check`` raises if it can't be used any more.

    ``reading`` takes a snapshot for some seconds.
    """

    def __init__(
        self,
        host: Host,
        transactions: Transactions,
        audit: Audit,
        check: Callable[[], None],
        reading: Callable[[float], SqlSnapshot],
    ) -> None:
        self._host = host
        self._session = host.session
        self._account = host.session.registry.account
        self._transactions = transactions
        self._audit = audit
        self._check = check
        self._reading = reading
        self._direct = DirectGets(host.session)

    async def call(self, request: Request[R], client: ClientInfo | None) -> R:
        """Handle one administrative request; ``client`` is whom an audit names, if it is not this process."""
        kind = type(request)
        with self._account.counting():
            if kind in LOOKS:
                return await self._looked(request)
            inside = self._transactions.of_caller() if kind in QUESTIONS else None
            if inside is not None and (inside.is_open or kind not in READS):
                return await inside.look(lambda operations: answer(operations.session, request))
            if kind in READS:
                await self._before_reading()
                if isinstance(request, MsgGet) and (found := self._direct.fast_message(request)) is not None:
                    return cast("R", found)
                # What is due, or to be audited, has to be written first.
                with suppress(SnapshotOnlyError):
                    return self._host.read(lambda: self._look(request))
            # What a question removes because it has expired, it removes again if that is lost.
            is_durable = kind not in QUESTIONS
            reply: R = await self._host.stage(lambda: self._audit.call(request, client), durable=is_durable)
            return reply

    async def _looked(self, request: Request[R]) -> R:
        if self._transactions.of_caller() is None:
            await self._host.readable()
        stream = names_of(request)["stream"]
        return await look(self._reading, self._host.read(lambda: self._session.registry.stream(stream)), request)

    async def ask(self, request: Request[R]) -> R:
        """Answer a question of this process itself: it is neither counted nor audited."""
        await self._before_reading()
        with suppress(SnapshotOnlyError):
            return self._host.read(lambda: answer(self._session, request))
        reply: R = await self._host.stage(lambda: answer(self._session, request), durable=False)
        return reply

    async def answered(
        self, subject: str, request: bytes, response: bytes, client: ClientInfo, *, is_refused: bool
    ) -> None:
        """Count and audit a request that a server has answered by itself."""
        self._account.count(is_refused=is_refused)
        if self._audit.is_wanted:
            await self._host.stage(lambda: self._audit.tell(subject, request, response, client), durable=False)

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream (ADR-31)."""
        self._check()
        inside = self._transactions.of_caller()
        if inside is not None and inside.is_open:
            return await inside.look(lambda operations: operations.direct_get(stream, request))
        await self._before_reading()
        reply = self._direct.fast_get(stream, request)
        if reply is None:
            reply = self._host.read(lambda: self._direct.look(stream, request))
        if reply is None:
            reply = await self._host.stage(lambda: self._direct.clean_and_look(stream, request), durable=False)
        return reply

    async def _before_reading(self) -> None:
        await self._host.readable()
        if self._direct.is_greedy():
            await asyncio.sleep(0)
            self._check()

    def _look(self, request: Request[R]) -> R:
        """Answer a request in a snapshot. Raises SnapshotOnlyError."""
        if self._audit.is_wanted:
            self._session.db.check_changing()
        return answer(self._session, request)
