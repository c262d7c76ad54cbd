"""What slows one opener of a store down: counted, and told once in a while, to the log and as events.

**Which backups a store has.** A backup that continues notes the time of its last point in ``<store>-backups``, for the
metrics of other processes: they tell its age also when it does not run any more. Likewise, the process that is its leaf
node notes in ``<store>-leafs`` what its hubs are like, and a follower in ``<store>-standbys`` how far its standby is.

Methods may be called from any thread: a large group is synced on one of its own.

**Who writes now.** In WAL mode a transaction that writes holds a lock on byte 120 of the log's index (``-shm``). Linux
lists the locks of all processes; to ask for one (F_GETLK) would take a descriptor of the index, and closing that drops
the locks that SQLite holds for this process.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from pelton.runtime import stopwatch
from pelton.storage.faults import Fault
from pelton.storage.store_file import note_of

_log: Final = logging.getLogger("pelton.storage")
SLOW_SYNC_S: Final = 1.0
LONG_WAIT_S: Final = 1.0
# A slow disk makes every sync slow: that is said once, and then once in a while.
_BETWEEN_S: Final = 60.0


class Trouble(msgspec.Struct, frozen=True):
    """One thing to tell; ``seconds`` of a sync or a wait, or ``log_bytes`` of a log that cannot be folded."""

    kind: Literal["slow sync", "writer wait", "checkpoint"]
    seconds: float = 0.0
    log_bytes: int = 0


class Troubles:
    """The troubles of one opener of the store ``path``. Durations in seconds."""

    slow_syncs: int
    slowest_sync: float
    writer_waits: int
    longest_writer_wait: float
    blocked_checkpoints: int
    has_news: bool

    def __init__(self, path: str) -> None:
        self._path = path
        self.slow_syncs = 0
        self.slowest_sync = 0.0
        self.writer_waits = 0
        self.longest_writer_wait = 0.0
        self.blocked_checkpoints = 0
        self.has_news = False
        self._news: list[Trouble] = []
        self._told: dict[str, float] = {}

    def sync_took(self, seconds: float) -> None:
        """Note a sync of at least :data:`SLOW_SYNC_S`."""
        self.slow_syncs += 1
        self.slowest_sync = max(self.slowest_sync, seconds)
        if self._tell(Trouble("slow sync", seconds)):
            _log.warning(
                "store %s: a sync to disk took %.1f s: the disk is slow or overloaded",
                self._path,
                seconds,
                extra={"store": self._path, "seconds": seconds},
            )

    def writer_took(self, seconds: float) -> None:
        """Note a wait of at least :data:`LONG_WAIT_S` for the transaction of another process."""
        self.writer_waits += 1
        self.longest_writer_wait = max(self.longest_writer_wait, seconds)
        if self._tell(Trouble("writer wait", seconds)):
            _log.warning(
                "store %s: waited %.1f s for the transaction of another process: is there a long transaction, a bulk "
                "load, or a stopped process?",
                self._path,
                seconds,
                extra={"store": self._path, "seconds": seconds},
            )

    def checkpoint_blocked(self, log_bytes: int) -> None:
        """Note that the log has grown long, and cannot be folded into the file."""
        self.blocked_checkpoints += 1
        self._write_note(Trouble("checkpoint", log_bytes=log_bytes))
        _log.warning(
            "store %s: its log has grown to %d MB and cannot be folded into the file, because a process still "
            "reads an old snapshot: a stopped process, or a long read, transaction or backup. The log "
            "shrinks with the first writes after that has ended",
            self._path,
            log_bytes >> 20,
            extra={"store": self._path, "log_bytes": log_bytes},
        )

    def take(self) -> list[Trouble]:
        """Return what was not taken yet."""
        self.has_news = False
        news, self._news = self._news, []
        return news

    def _tell(self, trouble: Trouble) -> bool:
        """Note a trouble that may come often; return whether it is to be told of now."""
        now = stopwatch()
        if now - self._told.get(trouble.kind, float("-inf")) < _BETWEEN_S:
            return False
        self._told[trouble.kind] = now
        self._write_note(trouble)
        return True

    def _write_note(self, trouble: Trouble) -> None:
        self._news.append(trouble)
        self.has_news = True


class WriterHold(msgspec.Struct, frozen=True):
    """A process that holds the writer of a store, seen so for ``seconds`` in which it wrote nothing to the log."""

    pid: int
    seconds: float


_LOCKS: Final = "/proc/locks"
_WRITE_LOCK: Final = 120
# By path: the process that was seen, the state of the log, and since when both are so.
_seen: Final[dict[str, tuple[int, int, float]]] = {}


def writer_hold(path: str, now: float) -> WriterHold | None:
    """Return who holds the writer of the store file ``path``; None if nobody does, or if the system does not tell.

    ``now`` is in monotonic seconds. Nobody records since when: that is known from one call of this process to another.
    """
    path = os.path.realpath(path)
    pid = _writer(path + "-shm")
    if pid is None:
        _seen.pop(path, None)
        return None
    log = 0
    with suppress(OSError):
        log = os.stat(path + "-wal").st_mtime_ns
    if _seen.get(path, ())[:2] != (pid, log):
        _seen[path] = pid, log, now
    return WriterHold(pid, max(now - _seen[path][2], 0.0))


def _writer(index: str) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        found = os.stat(index)
        with open(_LOCKS) as lines:
            for words in (line.split() for line in lines):
                if words[1] == "POSIX" and words[3] == "WRITE" and _is_of(words[5], found):
                    begin, end = int(words[6]), words[7]
                    if begin <= _WRITE_LOCK and (end == "EOF" or int(end) >= _WRITE_LOCK):
                        return int(words[4])
    return None


def _is_of(place: str, file: os.stat_result) -> bool:
    """Whether a lock's place (device and inode) is that of a file; some file systems have a device for each view."""
    major, minor, inode = place.split(":")
    device = int(major, 16), int(minor, 16)
    is_there = device == (os.major(file.st_dev), os.minor(file.st_dev)) or device[0] == os.major(file.st_dev) == 0
    return is_there and int(inode) == file.st_ino


_BACKUPS: Final = "-backups"
_MOST: Final = 1 << 20
# Nothing is read from a link or a pipe of this name, or written to it.
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def note_backup(path: str, target: str, time_ns: int) -> None:
    """Note beside a store that ``target`` has a point of this time; a folder that is not writable keeps no note."""
    _write_note(path, _BACKUPS, json.dumps(backups_noted(path) | {target: time_ns}).encode())


def _write_note(path: str, name: str, data: bytes) -> None:
    file = os.path.realpath(path) + name
    with suppress(OSError):
        mode = os.stat(path).st_mode & 0o666
        descriptor = os.open(file + "-new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, mode)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        os.replace(file + "-new", file)


def _read_note(path: str, name: str) -> bytes:
    try:
        descriptor = os.open(os.path.realpath(path) + name, os.O_RDONLY | _FLAGS)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MOST)
    finally:
        os.close(descriptor)


def backups_noted(path: str) -> dict[str, int]:
    """Return the time of the last point of each backup that a store has, in wall nanoseconds."""
    try:
        found = json.loads(_read_note(path, _BACKUPS))
    except ValueError:
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {target: time for target, time in pairs if isinstance(time, int)}


# --- the hubs whose leaf node a store is, as the process tells that is connected to them

_LEAFS: Final = "-leafs"


class LeafNote(msgspec.Struct, frozen=True, kw_only=True):
    """A hub whose leaf node a store is, as its process told last. Times are wall nanoseconds."""

    url: str
    """The hub's address, without the login."""
    domain: str = ""
    """The JetStream domain of the store."""
    connected_ns: int = 0
    """Since when it is connected; 0 while it is not."""
    reason: str = ""
    """Why it is not connected."""
    attempts: int = 0
    """How often it was tried since it was connected last."""
    rtt: float = 0.0
    """How many seconds an answer of the hub took last."""
    in_msgs: int = 0
    """How many messages have come from the hub by this connection."""
    in_bytes: int = 0
    """How many bytes they had."""
    out_msgs: int = 0
    """How many messages were sent to the hub by this connection."""
    out_bytes: int = 0
    """How many bytes they had."""
    pid: int = 0
    """The process that is the leaf node."""
    told_ns: int = 0
    """When it told this."""


def note_leafs(path: str, leafs: Sequence[LeafNote]) -> None:
    """Note beside a store what its hubs are like; none: nobody is its leaf node any more."""
    if leafs:
        _write_note(path, _LEAFS, msgspec.json.encode(leafs))
        return
    with suppress(OSError):
        os.unlink(os.path.realpath(path) + _LEAFS)


def leafs_noted(path: str) -> list[LeafNote]:
    """Return the hubs of a store, as they were told last."""
    try:
        return msgspec.json.decode(_read_note(path, _LEAFS), type=list[LeafNote])
    except msgspec.MsgspecError:
        return []


# --- the standbys of a store, and how far each has come, as those who follow it tell

_STANDBYS: Final = "-standbys"
_SECOND_NS: Final = 10**9


class StandbyLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a standby is behind its store."""

    source: str
    """The store: the path of its file, or the address of its server."""
    standby: str
    """The path of the standby, after its host and a colon if that is another one."""
    seconds: float
    """How long ago it last held all that the store had acknowledged."""
    messages: int | None = None
    """How many messages the store has stored since; None beside the standby, which does not know."""


def note_standby(path: str, standby: str, copied_ns: int, last_seqs: int) -> None:
    """Note beside a store what a standby held at that time: so many messages by their sequences."""
    _write_note(path, _STANDBYS, json.dumps(_standbys_noted(path) | {standby: [copied_ns, last_seqs]}).encode())


def forget_standbys(path: str) -> None:
    """Remove what is noted: one of them has taken the store's place."""
    with suppress(OSError):
        os.unlink(os.path.realpath(path) + _STANDBYS)


def _standbys_noted(path: str) -> dict[str, tuple[int, int]]:
    try:
        return msgspec.json.decode(_read_note(path, _STANDBYS), type=dict[str, tuple[int, int]])
    except msgspec.MsgspecError:
        return {}


def standby_lags(path: str, last_seqs: int, now: int) -> list[StandbyLag]:
    """Return how far the standbys of a store are, whose last sequences have this sum, or the standby at ``path``."""
    path = os.path.realpath(path)
    with suppress(Fault):
        if (own := note_of(path)) is not None and own.state == "standby" and own.copied_ns:
            seconds = max(now - own.copied_ns, 0) / _SECOND_NS
            return [StandbyLag(source=own.source, standby=path, seconds=seconds)]
    return [
        StandbyLag(
            source=path,
            standby=standby,
            seconds=max(now - copied_ns, 0) / _SECOND_NS,
            messages=max(last_seqs - copied_seqs, 0),
        )
        for standby, (copied_ns, copied_seqs) in _standbys_noted(path).items()
    ]
