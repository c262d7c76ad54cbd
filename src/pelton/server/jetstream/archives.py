"""``STREAM.SNAPSHOT`` and ``STREAM.RESTORE``; the first of them loads the libraries for the archive format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pelton.api import api_error
from pelton.api.codec import encode_failure
from pelton.runtime import Runtime
from pelton.server.jetstream.link import Send, StoreLink
from pelton.server.ports import Published

TRANSFERS: Final = "$JS.SNAPSHOT."
_SNAPSHOT: Final = "STREAM.SNAPSHOT."
_RESTORE: Final = "STREAM.RESTORE."
_KINDS: Final = {_SNAPSHOT: "stream_snapshot", _RESTORE: "stream_restore"}
_MISSING: Final = "archives need cramjam and crc32c: pip install 'pelton[serve]'"


class _Verb(Protocol):
    def take(self, stream: str, message: Published) -> bool: ...


class ArchiveService:
    """Answers the requests of one account about archives."""

    def __init__(
        self, link: StoreLink, send: Send, answer: Callable[[str, bytes | None, bytes], None], runtime: Runtime
    ) -> None:
        self._link = link
        self._send = send
        self._answer = answer
        self._runtime = runtime
        self._verbs: dict[str, _Verb] = {}

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; False if it is another one."""
        verb = next((verb for verb in _KINDS if path.startswith(verb)), "")
        if not verb:
            return False
        try:
            self._load()
        except ModuleNotFoundError:
            error = api_error("JSStreamGeneralErrorF", err=_MISSING)
            self._answer(message.reply, None, encode_failure(_KINDS[verb], error))
            return True
        return self._verbs[verb].take(path[len(verb) :], message)

    def take_transfer(self, message: Published) -> bool:
        """Take a chunk of an archive, or the ack of one; False if none is under way."""
        return self._link.transfers.take(message)

    def _load(self) -> None:
        if self._verbs:
            return
        from pelton.server.jetstream.restores import RestoreService
        from pelton.server.jetstream.snapshots import SnapshotService

        transfers = self._link.transfers
        self._verbs = {
            _SNAPSHOT: SnapshotService(self._link, transfers, self._send, self._answer, self._runtime),
            _RESTORE: RestoreService(self._link, transfers, self._answer, self._runtime),
        }
