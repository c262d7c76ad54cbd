"""Answering requests: what only asks, in a snapshot; everything else in a transaction shared with other work.

What is due has to be written before an answer leaves it out: a question that meets it is asked again in a transaction.

**Advisories of API requests** are sent while they have a recipient. As on a NATS server, every request is audited
except a successful message get: otherwise, reading a stream of audits would add to it.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec

from pelton.api import (
    ApiError,
    ConfigError,
    DirectGet,
    DirectReply,
    MsgGet,
    PurgeReply,
    Request,
    StreamDelete,
    StreamInfo,
    StreamPurge,
    StreamUpdate,
    rfc3339,
)
from pelton.api.codec import api_subject, encode_body, encode_error, encode_reply, names_of
from pelton.api.events import ACCOUNT, ApiAudit, ClientInfo
from pelton.api.requests import VERB_OF
from pelton.engine.host import Host, stage_fresh
from pelton.engine.session import Session
from pelton.engine.snapshots import LOOKS, DirectGets, SqlSnapshots, look
from pelton.engine.transactions import Transactions
from pelton.engine.verbs import QUESTIONS, READS, answer
from pelton.engine.verbs.streams import Purge, Update
from pelton.storage import SnapshotOnlyError

R = TypeVar("R")
A = TypeVar("A")
_SUBJECT: Final = ApiAudit().subject
# What may remove much, and is done in transactions between which others can write.
_PORTIONED: Final[Mapping[type[Request[Any]], Callable[[Any], Purge | Update]]] = {
    StreamPurge: Purge,
    StreamUpdate: Update,
}


class Audit:
    """Audits the requests of one process, which opened its store at ``start`` (wall nanoseconds)."""

    def __init__(self, session: Session, start: int, version: str) -> None:
        self._session = session
        self._start = rfc3339(start)
        self._version = version

    @property
    def is_wanted(self) -> bool:
        return self._session.registry.has_recipient(_SUBJECT)

    def call(self, request: Request[R], client: ClientInfo | None, handle: Callable[[], A]) -> A:
        """Handle one request inside a transaction, and send its audit advisory if it has a reply.

        ``client`` None: this process asked.
        """
        kind = type(request)
        try:
            reply = handle()
        except ApiError as error:
            if kind in VERB_OF and self.is_wanted:
                self._tell(request, encode_error(kind, error), client)
            raise
        if not isinstance(reply, Purge | Update) and kind in VERB_OF and kind is not MsgGet and self.is_wanted:
            self._tell(request, encode_reply(kind, cast("R", reply)), client)
        return reply

    def _tell(self, request: Request[Any], response: bytes, client: ClientInfo | None) -> None:
        try:
            subject = api_subject(request)
        except ConfigError:
            # Its names form no valid subject, so a NATS server could not have received it.
            return
        self.tell(subject, encode_body(request), response, client)

    def tell(self, subject: str, request: bytes, response: bytes, client: ClientInfo | None) -> None:
        """Send the audit advisory of a request, as it came and as it was answered."""
        server = str(self._session.db.value("SELECT value FROM meta WHERE key='uuid'"))
        event = ApiAudit(
            server=server,
            client=self._process(server) if client is None else msgspec.structs.replace(client, server=server),
            api_subject=subject,
            request=request.decode("utf-8", "replace"),
            response=response.decode(),
        )
        self._session.advise(event)

    def _process(self, server: str) -> ClientInfo:
        return ClientInfo(
            start=self._start,
            host=platform.node(),
            id=os.getpid(),
            acc=ACCOUNT,
            lang="python3",
            ver=self._version,
            server=server,
            kind="Client",
        )


class Questions:
    """Answers the requests to one open store."""

    def __init__(self, host: Host, transactions: Transactions, audit: Audit, snapshots: SqlSnapshots) -> None:
        self._host = host
        self._session = host.session
        self._account = host.session.registry.account
        self._transactions = transactions
        self._audit = audit
        self._snapshots = snapshots
        self._direct = DirectGets(host.session)

    async def call(self, request: Request[R], client: ClientInfo | None) -> R:
        """Handle one administrative request; ``client`` is whom an audit names, if it is not this process."""
        kind = type(request)
        with self._account.counting():
            if kind in LOOKS:
                return await self._look_through(request)
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
            if (portioned := _PORTIONED.get(kind)) is not None:
                return cast("R", await self._in_portions(portioned(request), client))
            # What a question removes because it has expired, it removes again if that is lost.
            is_durable = kind not in QUESTIONS
            handle = partial(answer, self._session, request)
            # What is deleted need not expire.
            stream = "" if kind is StreamDelete else names_of(request).get("stream", "")
            work = partial(self._audit.call, request, client, handle)
            return cast("R", await stage_fresh(self._host, stream, work, durable=is_durable))

    async def _in_portions(self, begun: Purge | Update, client: ClientInfo | None) -> PurgeReply | StreamInfo:
        async def remove_portion(portion: Purge | Update, *, durable: bool) -> Purge | Update | PurgeReply | StreamInfo:
            request: Request[Any] = begun.request
            handle: Callable[[], object] = partial(portion.remove_portion, self._session)
            left: Purge | Update | PurgeReply | StreamInfo = await self._host.stage(
                lambda: self._audit.call(request, client, handle), durable=durable
            )
            return left

        await stage_fresh(self._host, names_of(begun.request).get("stream", ""), lambda: None, durable=False)
        left = await remove_portion(begun, durable=True)
        if isinstance(left, Purge | Update):
            while isinstance(left, Purge | Update):
                left = await remove_portion(left, durable=False)
            # One sync for all.
            await self._host.stage(lambda: None, durable=True)
        return left

    async def _look_through(self, request: Request[R]) -> R:
        if self._transactions.of_caller() is None:
            await self._host.readable()
        stream = names_of(request)["stream"]
        log = self._host.read(lambda: self._session.registry.stream(stream))
        return await look(self._snapshots.take, log, request)

    async def ask(self, request: Request[R]) -> R:
        """Answer a question of this process itself: it is neither counted nor audited."""
        await self._before_reading()
        with suppress(SnapshotOnlyError):
            return self._host.read(lambda: answer(self._session, request))
        work, stream = partial(answer, self._session, request), names_of(request).get("stream", "")
        return cast("R", await stage_fresh(self._host, stream, work, durable=False))

    async def audit_answer(
        self, subject: str, request: bytes, response: bytes, client: ClientInfo, *, is_refused: bool
    ) -> None:
        """Count and audit a request that a server has answered by itself."""
        self._account.count(is_refused=is_refused)
        if self._audit.is_wanted:
            await self._host.stage(lambda: self._audit.tell(subject, request, response, client), durable=False)

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream."""
        inside = self._transactions.of_caller()
        if inside is not None and inside.is_open:
            return await inside.look(lambda operations: operations.direct_get(stream, request))
        await self._before_reading()
        reply = self._direct.fast_get(stream, request)
        if reply is None:
            reply = self._host.read(lambda: self._direct.look(stream, request))
        if reply is None:
            work = partial(self._direct.clean_and_look, stream, request)
            reply = await stage_fresh(self._host, stream, work, durable=False)
        return reply

    def direct_get_now(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Return one message read directly from the stream; None if that may have to wait."""
        if self._transactions.is_unreadable or self._direct.is_greedy():
            return None
        return self._direct.fast_get(stream, request)

    async def _before_reading(self) -> None:
        await self._host.readable()
        if self._direct.is_greedy():
            await asyncio.sleep(0)
            self._host.door.check()

    def _look(self, request: Request[R]) -> R:
        """Answer a request in a snapshot. Raises SnapshotOnlyError."""
        if self._audit.is_wanted:
            self._session.db.check_changing()
        return answer(self._session, request)
