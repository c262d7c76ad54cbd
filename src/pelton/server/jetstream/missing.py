"""Answers JetStream requests of accounts that have no store, on a server where others have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from pelton.api import AccountInfoRequest, api_error
from pelton.api.codec import encode_error, encode_failure, verb_of
from pelton.server.jetstream.verbs import refusal_for_clusters
from pelton.server.ports import Published

_API: Final = "$JS.API."
_PURGE: Final = "$JS.API.ACCOUNT.PURGE."
_PURGED: Final = {"type": "io.nats.jetstream.api.v1.account_purge_response", "initiated": True}
_SYSTEM: Final = "system"
_TRANSFERS: Final = {"STREAM.SNAPSHOT.": "stream_snapshot", "STREAM.RESTORE.": "stream_restore"}

Purge = Callable[[str, Callable[[], None]], None]
"""Removes the streams of an account by its name, and calls back then."""


class MissingJetStream:
    """Tells clients that their account has no JetStream, as nats-server does. ``answer`` sends a reply.

    ``imports`` tells whether a request goes to another account. ``purge`` removes the streams of another account; None
    if that is not for this one, which is not the system account.
    """

    def __init__(
        self,
        answer: Callable[[str, bytes | None, bytes], None],
        imports: Callable[[str], bool],
        purge: Purge | None = None,
    ) -> None:
        self._answer = answer
        self._imports = imports
        self._purge = purge

    def take(self, message: Published) -> bool:
        """Answer a request; False if nobody does."""
        subject = message.subject
        if not subject.startswith(_API) or self._imports(subject):
            return False
        if self._purge is not None and subject.startswith(_PURGE):
            purged = msgspec.json.encode(_PURGED)
            self._purge(subject[len(_PURGE) :], lambda: self._answer(message.reply, None, purged))
            return True
        body = self._refusal(subject)
        if body is not None:
            self._answer(message.reply, None, body)
        return body is not None

    def _refusal(self, subject: str) -> bytes | None:
        error, path, verb = api_error("JSNotEnabledForAccountErr"), subject[len(_API) :], verb_of(subject)
        if self._purge is not None and (verb is None or verb.request is not AccountInfoRequest):
            return encode_failure(_SYSTEM, error)
        if verb is not None:
            return encode_error(verb.request, error)
        kind = next((_TRANSFERS[name] for name in _TRANSFERS if path.startswith(name)), "")
        return encode_failure(kind, error) if kind else refusal_for_clusters(path)
