"""Hands out a store's file and its log to followers on other hosts, which keep standbys of it.

Design: A follower's *session* has the transactions that a follower on this host would hold (``storage/standby.py``).
They keep the log from beginning anew, so a session of which nothing was heard for some seconds ends. A request is
answered on a thread, one after the other in each session. What is handed out is all that the account's store holds, so
only logins that may do everything in the account may ask, and those whose permissions name the subject.

A store that was told that its standby has taken its place ends for its server, which would let go of all clients: also
of the one that copies the rest. So that waits until its sessions have ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.runtime import Runtime, on_thread
from pelton.server.connection import AccountPort, ClientConnection, Published
from pelton.storage import Fault, ReadOnlyDatabase
from pelton.storage.store_file import admitting

if TYPE_CHECKING:
    from pelton.moving.served_log import StandbyReply, StandbyRequest
    from pelton.storage.standby import LogPosition, SourceLog

_log: Final = logging.getLogger("pelton.server")
_SUBJECT: Final = "$PELTON.STANDBY"
_OWN: Final = "$PELTON."
_MOST: Final = 8
_IDLE_S: Final = 15.0
_LOOK_S: Final = 1.0
_FENCED_S: Final = 3.0
_REST: Final = 4096
_PIECE: Final = 1 << 20
_DENIED: Final = (
    f"a standby holds all of the account's store: allow the login to do everything, or to publish to {_SUBJECT} by name"
)


Access = Callable[[], AbstractContextManager[None]]


class _Session:
    """What is held for one follower."""

    def __init__(self, log: SourceLog, client: ClientConnection, access: Access) -> None:
        self.log = log
        self.client = client
        self.access = access
        self.lock = asyncio.Lock()
        self.used = 0.0
        self._turn: tuple[AbstractContextManager[LogPosition], LogPosition] | None = None

    def begin_turn(self, at: LogPosition | None) -> tuple[LogPosition, bool]:
        """Return where the log ends now, and whether the follower is there."""
        self.end_turn(is_copied=False)
        turn = self.log.turn()
        end = turn.__enter__()
        self._turn = turn, end
        if is_done := at == end:
            self.end_turn(is_copied=True)
        return end, is_done

    def end_turn(self, *, is_copied: bool) -> None:
        if self._turn is None:
            return
        (turn, _), self._turn = self._turn, None
        if is_copied:
            turn.__exit__(None, None, None)
        else:
            again = Fault("io", self.log.path, "the follower has not copied what it was given")
            with suppress(Fault):
                turn.__exit__(Fault, again, None)

    def close(self) -> None:
        self.end_turn(is_copied=False)
        self.log.close()


class StandbySource:
    """Answers the followers of the store at ``path``, encrypted with ``key`` or not; a service of its account."""

    def __init__(
        self, path: str, key: bytes | None, account: AccountPort, runtime: Runtime, max_payload: int = 1 << 20
    ) -> None:
        self._path, self._key = os.path.realpath(path), key
        self._account, self._runtime = account, runtime
        self._chunk = max(max_payload - _REST, _REST)
        self._sessions: dict[str, _Session] = {}
        self._fenced: float | None = None
        self._is_watching = self._is_closed = False

    def take(self, message: Published) -> bool:
        """Answer a request; False if it is none of a follower."""
        if message.subject != _SUBJECT:
            return False
        self._runtime.spawn(self._take(message), "pelton answers the follower of a standby")
        return True

    async def _take(self, message: Published) -> None:
        from pelton.moving.served_log import StandbyReply, StandbyRequest

        try:
            request = msgspec.msgpack.decode(message.data, type=StandbyRequest)
            if self._may_follow(message.client):
                reply = await self._answer(request, message.client)
            else:
                reply = StandbyReply(kind="denied", detail=_DENIED)
        except msgspec.MsgspecError:
            reply = StandbyReply(kind="settings", detail="the request is of another version of Pelton")
        except Fault as fault:
            reply = StandbyReply(kind=fault.kind, detail=fault.detail)
        except OSError as error:
            reply = StandbyReply(kind="io", detail=str(error))
        self._account.answer(message.reply, None, msgspec.msgpack.encode(reply))

    def _may_follow(self, client: ClientConnection) -> bool:
        """Whether a client is of this account, and may do everything, or this by name."""
        if client.account is not self._account or not isinstance(client, ClientConnection):
            return False
        permissions = client.rights.permissions
        if permissions is None:
            return True
        allowed = permissions.rules.publish.allow if permissions.rules is not None else None
        return client.may_publish(_SUBJECT) and any(rule.startswith(_OWN) for rule in allowed or ())

    async def _answer(self, request: StandbyRequest, client: ClientConnection) -> StandbyReply:
        from pelton.moving.served_log import StandbyReply

        if request.verb == "open":
            return await self._open(
                client, "" if request.is_promoting else request.by, is_promoting=request.is_promoting
            )
        if request.verb in ("fence", "unfence", "last"):
            return StandbyReply(last_seqs=await on_thread(lambda _: self._tell(request)))
        session = self._sessions.get(request.session)
        if session is None or session.client is not client:
            raise Fault("io", self._path, "its server has let go of this follower, which begins again")
        session.used = self._runtime.clock.monotonic()
        if request.verb == "close":
            await self._end(request.session)
            return StandbyReply()
        if request.verb == "alive":
            return StandbyReply()
        async with session.lock:
            with session.access():
                return await on_thread(lambda _: self._carry_out(session, request))

    async def _open(self, client: ClientConnection, by: str, *, is_promoting: bool) -> StandbyReply:
        from pelton.moving.served_log import CHUNK, StandbyReply
        from pelton.storage.standby import SourceLog

        if len(self._sessions) >= _MOST or self._is_closed:
            raise Fault("busy", self._path, f"{_MOST} followers are connected to its server: end one")

        # A store that was just replaced is copied to its end.
        access: Access = partial(admitting, self._path) if is_promoting else nullcontext

        def open_log() -> SourceLog:
            with access():
                return SourceLog(self._path, self._key, by, self._runtime.clock.now)

        log = await on_thread(lambda _: open_log(), SourceLog.close)
        session, name = _Session(log, client, access), self._runtime.ids.new()
        session.used = self._runtime.clock.monotonic()
        self._sessions[name] = session
        self._watch()
        _log.info("client %s follows store %s", client.peer, self._path, extra={"store": self._path})
        return StandbyReply(session=name, uuid=log.uuid, mode=log.mode, chunk=min(CHUNK, self._chunk))

    def _tell(self, request: StandbyRequest) -> int:
        from pelton.storage.standby import fence, sum_of_last_seqs, unfence

        if request.verb == "fence":
            self._fenced = self._runtime.clock.monotonic()
            fence(self._path, self._key, request.by)
        elif request.verb == "unfence":
            unfence(self._path, self._key)
        with closing(ReadOnlyDatabase(self._path, key=self._key)) as store, store.reading():
            return sum_of_last_seqs(store)

    def _carry_out(self, session: _Session, request: StandbyRequest) -> StandbyReply:
        from pelton.moving.served_log import StandbyReply
        from pelton.storage.standby import LogPosition

        log, is_done, data = session.log, False, b""
        end = LogPosition(b"", 0)
        if request.verb == "turn":
            at = LogPosition(request.header, request.frames) if request.is_copied else None
            end, is_done = session.begin_turn(at)
        elif request.verb == "done":
            session.end_turn(is_copied=request.is_copied)
        elif request.verb == "copied":
            log.note_copied(request.by)
        elif request.verb == "end":
            end = log.end()
        elif request.verb == "digest":
            data = _digest(log, request.size)
        else:
            read = log.read_log if request.verb == "log" else log.read_file
            data = read(request.offset, min(request.size, self._chunk))
        return StandbyReply(
            header=end.header,
            frames=end.frames,
            last_seqs=log.last_seqs,
            is_done=is_done,
            data=data,
            crc=zlib.crc32(data),
        )

    async def _end(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            async with session.lock:
                await on_thread(lambda _: session.close())

    # --- what time ends

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._runtime.spawn(self._end_idle(), "pelton ends the sessions of standbys that are silent")

    async def _end_idle(self) -> None:
        while self._sessions:
            await self._runtime.clock.sleep(_LOOK_S)
            now = self._runtime.clock.monotonic()
            for name, session in list(self._sessions.items()):
                is_gone = session.client.state == "closed"
                if is_gone or (now - session.used > _IDLE_S and not session.lock.locked()):
                    _log.info("follower %s is gone", session.client.peer, extra={"store": self._path})
                    await self._end(name)
        self._is_watching = False

    def after_copying(self, then: Callable[[], None]) -> None:
        """Call ``then`` when nobody copies the rest of a store that was just replaced; else now."""
        since = self._fenced
        is_fresh = since is not None and self._runtime.clock.monotonic() - since < _FENCED_S
        if since is not None and not self._is_closed and (is_fresh or self._sessions):
            self._runtime.clock.call_later(_LOOK_S / 4, lambda: self.after_copying(then))
        else:
            then()

    async def close(self) -> None:
        """End all sessions."""
        self._is_closed = True
        for name in list(self._sessions):
            await self._end(name)


def _digest(log: SourceLog, size: int) -> bytes:
    from pelton.moving.served_log import DIGEST_SIZE

    digest, offset = blake2b(digest_size=DIGEST_SIZE), 0
    while offset < size and (piece := log.read_log(offset, min(_PIECE, size - offset))):
        digest.update(piece)
        offset += len(piece)
    return digest.digest() if offset == size else b""
