"""The JetStream API of an account: which part answers a message on ``$JS.>``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pelton.api.acks import long_ack_prefix
from pelton.runtime import Runtime
from pelton.server.jetstream.acks import ClientAcks
from pelton.server.jetstream.archives import TRANSFERS, ArchiveService
from pelton.server.jetstream.direct import DirectGetService
from pelton.server.jetstream.link import Send, StoreLink
from pelton.server.jetstream.pulls import ClientPulls
from pelton.server.jetstream.replies import ReplyCompletion
from pelton.server.jetstream.verbs import ApiVerbs
from pelton.server.ports import Published

Answer = Callable[[str, bytes | None, bytes], None]
"""Sends an answer: reply subject, header block, data."""
_ACKS: Final = "$JS.ACK."
_API: Final = "$JS.API."
_NEXT: Final = "CONSUMER.MSG.NEXT."
_DIRECT: Final = "DIRECT.GET."


class JetStreamService:
    """Answers messages on ``$JS.>``, and those of a domain on ``$JS.<domain>.>``."""

    def __init__(
        self,
        link: StoreLink,
        send: Send,
        answer: Answer,
        receives: Callable[[str], bool],
        has_room: Callable[[str], bool],
        runtime: Runtime,
        account: str,
        completion: ReplyCompletion,
    ) -> None:
        domain = completion.domain
        self._domain = f"$JS.{domain}.API." if domain else ""
        self._pulls = ClientPulls(link.serving, send, answer, receives, has_room)
        self._acks = ClientAcks(link, answer, self._pulls.pull, long_ack_prefix(account, domain))
        self._direct = DirectGetService(link, answer, receives, has_room, runtime)
        self._verbs = ApiVerbs(link, answer, completion)
        self._archives = ArchiveService(link, send, answer, runtime)

    def take(self, message: Published) -> bool:
        """Answer a message; False if nobody does."""
        subject = message.subject
        if subject.startswith(_ACKS):
            return self._acks.take(message)
        if subject.startswith(TRANSFERS):
            return self._archives.take_transfer(message)
        if subject.startswith(_API):
            path = subject[len(_API) :]
        elif self._domain and subject.startswith(self._domain):
            path = subject[len(self._domain) :]
        else:
            return False
        if path.startswith(_NEXT):
            return self._pulls.take(path[len(_NEXT) :], message)
        if path.startswith(_DIRECT):
            return self._direct.take(path[len(_DIRECT) :], message)
        return self._archives.take(path, message) or self._verbs.take(path, message)
