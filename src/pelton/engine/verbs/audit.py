"""Advisories of API requests, sent while they have a recipient.

As on a NATS server, every request is audited except a successful message get: otherwise, reading a stream of audits
would add to it.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Final, TypeVar

import msgspec

from pelton.api import ApiError, ConfigError, MsgGet, Request, rfc3339
from pelton.api.codec import api_subject, encode_body, encode_error, encode_reply
from pelton.api.events import ACCOUNT, ApiAudit, ClientInfo
from pelton.api.requests import VERB_OF
from pelton.engine.session import Session
from pelton.engine.verbs.table import answer

R = TypeVar("R")
_SUBJECT: Final = ApiAudit().subject


class Audit:
    """Audits the requests of one process, which opened its store at ``start`` (wall nanoseconds)."""

    def __init__(self, session: Session, start: int, version: str) -> None:
        self._session = session
        self._start = rfc3339(start)
        self._version = version

    @property
    def is_wanted(self) -> bool:
        """Whether audit advisories have a recipient."""
        return self._session.would_reach(_SUBJECT)

    def call(self, request: Request[R], client: ClientInfo | None) -> R:
        """Handle one request inside a transaction, and send its audit advisory; None: this process asked."""
        kind = type(request)
        try:
            reply = answer(self._session, request)
        except ApiError as error:
            if kind in VERB_OF and self.is_wanted:
                self._tell(request, encode_error(kind, error), client)
            raise
        if kind in VERB_OF and kind is not MsgGet and self.is_wanted:
            self._tell(request, encode_reply(kind, reply), client)
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
