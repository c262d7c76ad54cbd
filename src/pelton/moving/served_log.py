"""A store behind ``pelton serve`` as the source of a standby on another host.

Design: The server reads the file and its log with the transactions of a follower (``server/store_link.py``), and
hands out their bytes on ``SUBJECT``; here they are asked for, piece by piece, each with a checksum. So the same
follower (``storage/standby.py``) writes the same bytes as beside the store. What the server holds for it, a *session*,
ends when nothing was asked for some seconds. After a cut wire, a killed server or a lapsed session the follower begins
as after a kill of its own: it goes on if its log is how the store's log begins, and copies the store anew otherwise.

A cluster follows messages, not bytes (``cluster_standby.py``). So there the follower keeps such a copy for itself, and
reads that one: turn by turn, as it reads a file of its host.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import blake2b
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from pelton.api import (
    ConfigError,
    PeltonError,
    ServerPermissionError,
    ServerTimeoutError,
    ServerUnreachableError,
    StoreStandbyError,
)
from pelton.connect.opening import need_nats
from pelton.engine.upkeep import public_faults
from pelton.runtime import on_thread, system_runtime
from pelton.storage import Fault
from pelton.storage.faults import FaultKind
from pelton.storage.standby import SHORTER, LogPosition, StandbyWriter, fence, unfence, write_at
from pelton.storage.troubles import forget_standbys, note_standby
from pelton.sync.portal import Portal

SUBJECT: Final = "$PELTON.STANDBY"
DIGEST_SIZE: Final = 16
CHUNK: Final = 512 << 10
ALIVE_S: Final = 3.0
_ANSWER_S: Final = 20.0
_PATIENCE_S: Final = 5.0
_AT_ONCE: Final = 4


class StandbyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a follower asks for; ``header`` and ``frames`` are where it is, ``by`` the standby."""

    verb: Literal[
        "open", "turn", "done", "copied", "end", "log", "file", "digest", "alive", "close", "fence", "unfence", "last"
    ]
    session: str = ""
    offset: int = 0
    size: int = 0
    header: bytes = b""
    frames: int = 0
    is_copied: bool = False
    is_promoting: bool = False
    by: str = ""


class StandbyReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer; ``kind`` and ``detail`` are those of a fault. ``is_done``: nothing is new, and the turn has ended."""

    kind: FaultKind | Literal["", "denied"] = ""
    detail: str = ""
    session: str = ""
    uuid: str = ""
    mode: int = 0
    chunk: int = CHUNK
    header: bytes = b""
    frames: int = 0
    last_seqs: int = 0
    is_done: bool = False
    data: bytes = b""
    crc: int = 0


def is_served(address: str) -> bool:
    """Whether an address leads to a server, and is not the path of a file."""
    scheme, colon, rest = address.partition(":")
    return scheme == "context" or bool(colon and rest.startswith("//"))


def name_of(address: str) -> str:
    """Return an address without its login."""
    if address.startswith("context:"):
        return address
    found = urlsplit(address)
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}"


class ServedStore:
    """A connection to the server of a store at ``address``, for threads that wait.

    Raises Fault of kind ``io`` if the server cannot be reached, StoreError if it refuses the login.
    """

    def __init__(self, address: str, *, patience: float = _PATIENCE_S) -> None:
        need_nats("a standby of a store on another host")
        from pelton.cluster import read_context, settings_of
        from pelton.cluster.connection import Connection

        self.name: str = name_of(address)
        self._runtime, options = system_runtime(), dict[str, Any]()
        if address.startswith("context:"):
            address, options = read_context(address.partition(":")[2], options)
        settings = settings_of(address, **{**options, "patience": patience})
        self._portal = Portal(self.name)
        self._connection = Connection(settings, self._runtime)

    def ask(self, *requests: StandbyRequest) -> list[StandbyReply]:
        """Return the answers to requests, which are sent at once."""
        try:
            found: list[StandbyReply] = self._portal.run(self._ask, requests)
        except (ServerUnreachableError, ServerTimeoutError) as error:
            raise Fault("io", self.name, f"its server cannot be reached: {error}") from None
        for reply in found:
            if reply.kind == "denied":
                raise ServerPermissionError(self.name, reply.detail)
            if reply.kind:
                raise Fault(reply.kind, self.name, reply.detail)
            if zlib.crc32(reply.data) != reply.crc:
                raise Fault("io", self.name, "an answer of its server does not match its checksum")
        return found

    async def _ask(self, requests: tuple[StandbyRequest, ...]) -> list[StandbyReply]:
        return await asyncio.gather(*map(self._ask_one, requests))

    async def _ask_one(self, request: StandbyRequest) -> StandbyReply:
        from pelton.cluster.connection import Interrupted

        until = self._runtime.clock.monotonic() + _ANSWER_S
        try:
            answer = await self._connection.begin(SUBJECT, msgspec.msgpack.encode(request), None, until)
        except Interrupted:
            raise ServerUnreachableError(self.name, "the connection was lost, or no answer came") from None
        if answer.is_unheard:
            raise ConfigError(
                f"{self.name} has no store to follow: a standby follows a file, or a file behind `pelton serve` "
                "of this version, in the account of the login"
            )
        try:
            return msgspec.msgpack.decode(answer.data, type=StandbyReply)
        except msgspec.MsgspecError:
            raise ConfigError(f"{self.name} does not answer as `pelton serve` of this version does") from None

    def keep_alive(self, session: str) -> None:
        """Let the server know from now on that this process is there."""

        async def go_on() -> None:
            while True:
                await self._runtime.clock.sleep(ALIVE_S)
                with suppress(PeltonError):
                    await self._ask_one(StandbyRequest(verb="alive", session=session))

        async def begin() -> None:
            self._runtime.spawn(go_on(), "pelton keeps the session of a standby")

        self._portal.run(begin)

    def close(self) -> None:
        with suppress(PeltonError):
            self._portal.run(self._connection.close)
        self._portal.stop()


class ServedLog:
    """A :class:`~pelton.storage.standby.Source` that is a store behind a server."""

    def __init__(self, address: str, standby: str, *, is_promoting: bool = False) -> None:
        """Begin; ``standby`` is what the server notes beside the store, "" for nothing."""
        self._store = ServedStore(address)
        self.path: str = self._store.name
        self._session = ""
        self._at: LogPosition | None = None
        self.last_seqs: int = 0
        try:
            by = standby and standby_name(standby)
            [found] = self._store.ask(StandbyRequest(verb="open", by=by, is_promoting=is_promoting))
            self._session, self._chunk = found.session, found.chunk
            self.uuid: str = found.uuid
            self.mode: int = found.mode
            self._store.keep_alive(self._session)
        except BaseException:
            self.close()
            raise

    def _ask(self, verb: Any, **fields: Any) -> StandbyReply:
        return self._store.ask(StandbyRequest(verb=verb, session=self._session, **fields))[0]

    @contextmanager
    def turn(self) -> Iterator[LogPosition]:
        at = self._at or LogPosition(b"", 0)
        found = self._ask("turn", header=at.header, frames=at.frames, is_copied=self._at is not None)
        self.last_seqs, end = found.last_seqs, LogPosition(found.header, found.frames)
        try:
            yield end
        except BaseException:
            if not found.is_done:
                with suppress(Fault, PeltonError):
                    self._ask("done")
            raise
        if not found.is_done:
            self._ask("done", is_copied=True)
        self._at = end

    def end(self) -> LogPosition:
        found = self._ask("end")
        return LogPosition(found.header, found.frames)

    def write_log(self, begin: LogPosition | None, end: LogPosition, file: int) -> None:
        for offset, data in self._pieces("log", begin.bytes if begin is not None else 0, end.bytes):
            write_at(file, data, offset)

    def write_file(self, file: int) -> None:
        for offset, data in self._pieces("file", 0, None):
            write_at(file, data, offset)

    def _pieces(self, verb: Literal["log", "file"], offset: int, until: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield bytes with their offsets, several pieces on their way at once; without ``until``, to the end."""
        while until is None or offset < until:
            places = [offset + number * self._chunk for number in range(_AT_ONCE)]
            asked = [
                StandbyRequest(verb=verb, session=self._session, offset=place, size=size)
                for place in places
                if (size := self._chunk if until is None else min(self._chunk, until - place)) > 0
            ]
            for request, reply in zip(asked, self._store.ask(*asked), strict=True):
                if not reply.data:
                    if until is None:
                        return
                    raise Fault("io", self.path, SHORTER)
                yield offset, reply.data
                offset += len(reply.data)
                if len(reply.data) < request.size:
                    # What follows it was not there yet, or is asked for again.
                    break

    def begins_with(self, log: int, end: LogPosition) -> bool:
        with open(log, "rb", closefd=False) as file:
            file.seek(0)
            digest, left = blake2b(digest_size=DIGEST_SIZE), end.bytes
            while left and (chunk := file.read(min(CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
        return not left and self._ask("digest", size=end.bytes).data == digest.digest()

    def fence(self, by: str) -> None:
        self._ask("fence", by=standby_name(by))

    def note_copied(self, standby: str) -> None:
        """Let the server note that ``standby`` holds what the last turn has brought."""
        self._ask("copied", by=standby)

    def close(self) -> None:
        session, self._session = self._session, ""
        if session:
            with suppress(Fault, PeltonError):
                self._store.ask(StandbyRequest(verb="close", session=session))
        self._store.close()


def standby_name(path: str) -> str:
    return f"{socket.gethostname()}:{path}"


def tell_served(address: str, verb: Literal["fence", "unfence", "last"], by: str = "") -> int:
    """Tell a store behind a server that ``by`` has taken its place, or not; return the sum of its last sequences.

    Raises Fault: of any refusal as well.
    """
    store = ServedStore(address)
    try:
        return store.ask(StandbyRequest(verb=verb, by=by))[0].last_seqs
    except StoreStandbyError:
        raise
    except PeltonError as error:
        raise Fault("io", store.name, str(error)) from None
    finally:
        store.close()


def check_source(noted: str, given: str) -> None:
    """Raise ConfigError unless ``given`` leads to where a standby has noted its store; it may have a login."""
    if is_served(given) != is_served(noted) or (is_served(given) and name_of(given) != noted):
        raise ConfigError(f"{name_of(given)!r} is not the store of this standby, which is {noted!r}")


# --- what a cluster follows


class FollowedFile:
    """A store file of this host, which a cluster follows. All that waits is called on threads; Faults are public."""

    def __init__(self, path: str, key: bytes | None) -> None:
        self.name: str = path
        self.path: str = path
        """Where its messages are read."""
        self._key = key

    def refresh(self) -> None:
        """Bring what is read up to date."""

    def note_copied(self, standby: str, copied_ns: int, last_seqs: int) -> None:
        """Note beside the store what ``standby`` holds."""
        note_standby(self.path, standby, copied_ns, last_seqs)

    def fence(self, by: str) -> None:
        """Tell the store that ``by`` has taken its place. Raises Fault."""
        fence(self.path, self._key, by)

    def unfence(self) -> None:
        """Take that back. Raises Fault."""
        unfence(self.path, self._key)

    def end(self) -> None:
        """Remove what is kept for the sake of the standby, which has taken the store's place."""
        forget_standbys(self.path)

    def close(self) -> None:
        """Let go of the store. Idempotent."""


class FollowedServer(FollowedFile):
    """A store behind a server, which a cluster follows. Its copy is in the user's folder for such.

    So a follower that was killed goes on with it, and so does whoever promotes on this host.
    """

    def __init__(self, address: str, key: bytes | None, standby: str, *, is_promoting: bool) -> None:
        # Each user of a server may have another account, and so another store.
        ends = repr((name_of(address), urlsplit(address).username, standby)).encode()
        folder = os.path.join(_caches(), blake2b(ends, digest_size=8).hexdigest())
        super().__init__(os.path.realpath(os.path.join(folder, "copy.pelton")), key)
        self.name: str = name_of(address)
        self._address, self._is_promoting = address, is_promoting
        self._writer: StandbyWriter | None = None
        self._log: ServedLog | None = None

    def refresh(self) -> None:
        with public_faults():
            if self._writer is None:
                os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
                now, path = system_runtime().clock.now, self.path
                # Each message is verified when it is read, as in a file beside the follower.
                self._writer = StandbyWriter(
                    self.name, path, self._key, now=now, verify=lambda _: [], open_source=self._open
                )
            self._writer.turn()

    def _open(self) -> ServedLog:
        self._log = ServedLog(self._address, "", is_promoting=self._is_promoting)
        return self._log

    def note_copied(self, standby: str, copied_ns: int, last_seqs: int) -> None:
        # A store that was replaced has no standbys.
        if self._log is not None and not self._is_promoting:
            with public_faults():
                self._log.note_copied(standby)

    def fence(self, by: str) -> None:
        tell_served(self._address, "fence", by)

    def unfence(self) -> None:
        tell_served(self._address, "unfence")

    def end(self) -> None:
        shutil.rmtree(os.path.dirname(self.path), ignore_errors=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _caches() -> str:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "pelton", "standbys")


def followed_store(address: str, key: bytes | None, standby: str, *, is_promoting: bool = False) -> FollowedFile:
    """Return what the cluster named ``standby`` follows: the file at a whole path, or one behind a server."""
    if is_served(address):
        return FollowedServer(address, key, standby, is_promoting=is_promoting)
    return FollowedFile(address, key)


@asynccontextmanager
async def open_followed(followed: FollowedFile) -> AsyncGenerator[FollowedFile]:
    """Let it be read in the block."""
    try:
        await on_thread(lambda _: followed.refresh())
        yield followed
    finally:
        await on_thread(lambda _: followed.close())
