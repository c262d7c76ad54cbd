"""Keeps a standby of a store file, and makes it the store (``storage/standby.py``).

**Promoting: whoever was told something by the old store, and not by the new one, is refused there.** In this order:

1. If the old store can be reached, it is told that it was replaced: every process that has it open stops writing. What
   it holds then is copied, so that nothing is lost. If it cannot be reached, what it has stored since the last copied
   moment stays there.
2. The floor from which fencing tokens of deliveries are counted is raised by more than the old store can have given
   since. All consumers keep that floor: acks of the old store's deliveries are below it.
3. The buckets of locks and elections go on far above their last revision, and each lease in them is written again: who
   holds it cannot renew it, as it knows an older revision, and it lasts as long as if it was renewed just now. So it is
   free only when its holder, who does not reach the new store, must have stopped.
4. Only then the file opens for others. Killed before that, it is promoted by doing it again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Final, Literal

import msgspec

from pelton.api import BucketNotFoundError, ConfigError, StreamFill, StreamState, headers
from pelton.api.arguments import check_callback, check_whole, path_of
from pelton.api.backend import StrPath
from pelton.api.build import seconds_to_ns
from pelton.api.keys import Key, key_bytes
from pelton.api.times import SECOND
from pelton.buckets.bucket import TOKENS_BUCKET, raise_tokens
from pelton.buckets.coding import operation_of
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.engine.host import public_error
from pelton.engine.salvage import recount
from pelton.engine.upkeep import public_faults
from pelton.jet import Stream
from pelton.moving.configs import as_published
from pelton.moving.copying import pages
from pelton.moving.served_log import ServedLog, check_source, is_served, name_of, standby_name, tell_served
from pelton.runtime import Halt, on_thread, pause, stopwatch, system_runtime
from pelton.storage import Fault, ReadOnlyDatabase
from pelton.storage.standby import StandbyWriter, fence, noting, sum_of_last_seqs, take_place, unfence
from pelton.storage.store_file import StandbyNote, admitting, note_of
from pelton.storage.troubles import forget_standbys
from pelton.sync.portal import Portal

_log: Final = logging.getLogger("pelton.moving")
_INTERVAL_S: Final = 0.05
_FAST_S: Final = 0.005
_BACKOFF_S: Final = 2.0
_STEP_S: Final = 0.05
_PASSING: Final = ("full", "busy", "io", "descriptors", "failed", "gone")
# A follower that runs has written its note so lately, and needs no longer to go on.
_FRESH_NS: Final = 3 * SECOND
_FOLLOWER_S: Final = 1.0
_LEASES_S: Final = 3600
# More revisions than the old store can have given since.
_APART: Final = 10**14
_MOST_OF_OTHERS: Final = 10_000


class StandbyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a standby is, and how far it is behind its store."""

    state: Literal["standby", "promoting", "store"]
    """``store`` once it was promoted, ``promoting`` if that was interrupted."""
    source: str
    """The path of its store, or of the store that it has replaced."""
    copied_ns: int
    """The wall time (ns) at which it last held all that its store had acknowledged; 0 before the first copy."""
    lag_seconds: float | None
    """How long ago that was; None before the first copy is complete."""
    lag_messages: int | None
    """How many messages the store has stored since; None if it cannot be read, or before the first copy."""
    problem: str = ""
    """What keeps it from being followed, or why the store cannot be read."""


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """What a promoted standby holds."""

    source: str
    """The path of the store that it replaces."""
    copied_ns: int
    """The wall time (ns) at which the old store had acknowledged nothing that is missing."""
    is_complete: bool
    """Whether the old store was told that it was replaced, and all of it was copied: nothing is lost."""
    problem: str = ""
    """Why it is not complete."""


def standby_status(path: StrPath, *, key: Key | None = None, source: StrPath | None = None) -> StandbyStatus:
    """Return how far a standby is behind its store. Blocks. Raises ConfigError if the file is no standby.

    ``source`` is the address of the store's server with its login, which is not kept beside the standby.
    """
    target, now = path_of("standby_status", path), system_runtime().clock.now()
    found = _note_on_cluster(target) if is_served(target) else _note(_real(target))
    lag_messages, problem = None, found.problem
    if found.state == "standby" and found.copied_ns:
        try:
            last_seqs = _last_seqs_of(_address(found, source), key_bytes(key))
            lag_messages = max(last_seqs - found.last_seqs, 0)
        except Fault as fault:
            problem = problem or str(fault)
    lag_ns = max(now - found.copied_ns, 0) if found.state == "standby" else 0
    is_copied = found.copied_ns or found.state != "standby"
    return StandbyStatus(
        state=found.state,
        source=found.source,
        copied_ns=found.copied_ns,
        lag_seconds=lag_ns / SECOND if is_copied else None,
        lag_messages=lag_messages,
        problem=problem,
    )


def _note_on_cluster(address: str) -> StandbyNote:
    from pelton.moving.cluster_promotion import note_on_cluster

    portal = Portal(name_of(address))
    try:
        found = portal.run(note_on_cluster, address)
    finally:
        portal.stop()
    return StandbyNote(found.state, found.source, found.copied_ns, found.last_seqs)


def _address(note: StandbyNote, source: StrPath | None) -> str:
    """Return where the store of a standby is; an address with a login has to be that of the note."""
    given = note.source if source is None else os.fspath(source)
    check_source(note.source, given)
    return given if is_served(given) else note.source


def _last_seqs_of(source: str, key: bytes | None) -> int:
    if is_served(source):
        return tell_served(source, "last")
    with closing(ReadOnlyDatabase(source, key=key)) as store, store.reading():
        return sum_of_last_seqs(store)


def _real(path: str) -> str:
    return os.path.realpath(path)


def _note(path: str) -> StandbyNote:
    with public_faults():
        found = note_of(path)
    if found is None:
        raise ConfigError(f"{path!r} is no standby: `pelton copy SOURCE {path} --follow` makes one")
    return found


# --- following


async def follow(
    source: StrPath,
    target: StrPath,
    *,
    key: Key | None = None,
    interval: float = _INTERVAL_S,
    demote: bool = False,
    num_replicas: int | None = None,
    on_copied: Callable[[], object] | None = None,
) -> None:
    """Keep ``target``, a file or a NATS cluster, a standby of the store ``source``, until cancelled: all that it holds.

    ``source`` is a file of this host, or the address of the ``pelton serve`` that has it on another one, such as
    ``nats://user:password@host:4222`` or ``context:NAME``. It looks for news each ``interval`` seconds. Killed at any
    time and run again, it goes on. ``key`` is that of an encrypted store, and of its standby. ``demote``: the target
    may be a store, also the one that was replaced by the source; it is overwritten. ``on_copied`` is called on another
    thread whenever the standby is up to date. What passes by itself, such as a full disk or a server that is away, is
    logged, and tried again.

    A cluster keeps each stream on ``num_replicas`` of its servers (1 by default). If it follows a store on another
    host, a copy of that is kept here, in the folder for caches of this user (``$XDG_CACHE_HOME``).

    Raises ConfigError, StoreSettingsError if the target is a store, StoreStandbyError once it was promoted, or if the
    source was replaced; StoreError if the source is damaged.
    """
    check_callback("follow", "on_copied", on_copied)
    pause_ns = seconds_to_ns("interval", interval, "follow")
    ends = path_of("follow", source), path_of("follow", target)
    secret, told = key_bytes(key), on_copied or (lambda: None)
    if is_served(ends[1]):
        from pelton.moving.cluster_standby import follow_on_cluster

        if demote:
            raise ConfigError(
                f"{name_of(ends[1])}: a cluster is not overwritten: delete its streams, then follow without demote"
            )
        if num_replicas is not None:
            check_whole("follow", "num_replicas", num_replicas, 1)
        origin, every = ends[0] if is_served(ends[0]) else _real(ends[0]), pause_ns / SECOND
        await follow_on_cluster(origin, ends[1], key=key, interval=every, num_replicas=num_replicas, told=told)
        return
    if num_replicas is not None:
        raise ConfigError("follow: num_replicas is for a standby on a cluster: leave it out")

    def work(halt: Halt) -> None:
        with public_faults():
            _Following(*ends, secret, pause_ns / SECOND, demote, told, halt).run()

    await on_thread(work)


class _Following:
    def __init__(
        self,
        source: str,
        target: str,
        key: bytes | None,
        interval: float,
        demote: bool,
        told: Callable[[], object],
        halt: Halt,
    ) -> None:
        self._ends = source, target
        self._key = key
        self._interval = interval
        self._may_demote = demote
        self._told = told
        self._halt = halt
        self._problem = ""
        self._has_turned = False

    def run(self) -> None:
        while not self._halt.is_asked_for:
            try:
                self._follow()
            except Fault as fault:
                # A standby that is damaged is copied again.
                is_standbys = fault.kind == "corrupt" and fault.path == _real(self._ends[1])
                is_there = is_served(self._ends[0]) or os.path.exists(self._ends[0])
                if not (fault.kind in _PASSING or is_standbys) or not is_there:
                    raise
                self._note_problem(str(fault))
                # What has just worked, and was cut off, is begun again at once.
                self._wait(_STEP_S if self._has_turned else _BACKOFF_S)
                self._has_turned = False

    def _follow(self) -> None:
        follower = open_writer(*self._ends, self._key, demote=self._may_demote)
        with closing(follower):
            while not self._halt.is_asked_for:
                is_new = follower.turn()
                self._may_demote, self._problem, self._has_turned = False, "", True
                self._told()
                # A writer that waits for readers of a long log waits for this.
                self._wait(_FAST_S if is_new and follower.is_log_long else self._interval)

    def _note_problem(self, text: str) -> None:
        if text == self._problem:
            return
        self._problem = text
        _log.warning("standby %r cannot be kept up to date, and is tried again: %s", self._ends[1], text)
        path = os.path.realpath(self._ends[1])
        with suppress(Fault, OSError), noting(path) as file:
            if (found := file.read()) is not None:
                file.write(msgspec.structs.replace(found, problem=text), durably=False)

    def _wait(self, seconds: float) -> None:
        deadline = stopwatch() + seconds
        while not self._halt.is_asked_for and (left := deadline - stopwatch()) > 0:
            pause(min(left, _STEP_S))


def open_writer(
    source: str, target: str, key: bytes | None, *, demote: bool = False, is_promoting: bool = False
) -> StandbyWriter:
    """Return what copies a store to its standby. Raises Fault."""
    now, name = system_runtime().clock.now, name_of(source) if is_served(source) else source
    opened = partial(ServedLog, source, _real(target), is_promoting=is_promoting) if is_served(source) else None
    verify = lambda path: recount(path, key)  # noqa: E731  # for one argument of a call
    return StandbyWriter(name, target, key, now=now, verify=verify, demote=demote, open_source=opened)


# --- promoting


async def promote(
    target: StrPath, *, key: Key | None = None, ask_source: bool = True, source: StrPath | None = None
) -> Promotion:
    """Make the standby ``target``, a file or a cluster, the store; its follower may run, and ends.

    If the old store can be reached, it is told, and what it holds is copied first; with ``ask_source=False`` it is left
    alone: then make sure that nobody writes to it. Whatever was not acknowledged, or was taken and not acknowledged, is
    delivered again. Do it again if it was interrupted. ``source`` is the address of the old store's server with its
    login, which is not kept beside the standby.

    Raises ConfigError if the file is no standby, StoreStandbyError if another one has taken the old store's place,
    StoreBusyError if its follower is stopped, StoreError.
    """
    if is_served(given := path_of("promote", target)):
        from pelton.moving.cluster_promotion import promote_on_cluster

        where = None if source is None else os.fspath(source)
        note, problem = await promote_on_cluster(given, key=key, ask_source=ask_source, source=where)
        return Promotion(source=note.source, copied_ns=note.copied_ns, is_complete=not problem, problem=problem)
    path, secret = _real(given), key_bytes(key)
    found = _note(path)
    if found.state == "store":
        raise ConfigError(f"{path!r} is the store already")
    problem = "the old store was not asked" if found.state == "standby" else "it was interrupted before"
    if ask_source and found.state == "standby":
        address = _address(found, source)
        problem = await on_thread(lambda _: _complete(path, found, address, secret))
    try:
        with admitting(path), noting(path) as file:
            found = file.read() or found
            if found.state == "store":
                raise ConfigError(f"{path!r} is the store already")
            file.write(msgspec.structs.replace(found, state="promoting"))
            leases = system_runtime().clock.now() + _LEASES_S * SECOND
            await on_thread(lambda _: take_place(path, secret, leases))
            async with open_store(path, key=key) as jet:
                await go_on_apart(jet)
            file.write(StandbyNote("store", found.source, found.copied_ns, found.last_seqs))
    except Fault as fault:
        raise public_error(fault) from None
    return Promotion(source=found.source, copied_ns=found.copied_ns, is_complete=not problem, problem=problem)


def _complete(path: str, note: StandbyNote, source: str, key: bytes | None) -> str:
    """Tell the old store that it was replaced, and copy the rest of it; return what has kept it from that."""
    try:
        _tell_replaced(source, key, path)
    except (Fault, OSError) as error:
        if isinstance(error, Fault) and error.kind == "standby":
            raise public_error(error) from None
        return f"the old store could not be reached: {error}"
    try:
        with admitting(note.source), closing(open_writer(source, path, key, is_promoting=True)) as follower:
            is_followed = abs(system_runtime().clock.now() - note.copied_ns) < _FRESH_NS
            deadline = stopwatch() + (_FOLLOWER_S if is_followed else 0)
            # What a follower that runs has read, it goes on from.
            while follower.turn(may_copy=stopwatch() >= deadline, durably=True) is None:
                pause(_STEP_S)
        if not is_served(source):
            forget_standbys(source)
    except Fault as fault:
        if fault.path == note.source:
            return f"the old store knows that it was replaced, but could not be copied: {fault}"
        _tell_replaced(source, key, None)
        raise public_error(fault) from None
    except BaseException:
        _tell_replaced(source, key, None)
        raise
    return ""


def _tell_replaced(source: str, key: bytes | None, by: str | None) -> None:
    """Tell a store that ``by`` has taken its place; None: that nothing has."""
    if is_served(source):
        tell_served(source, "unfence" if by is None else "fence", "" if by is None else standby_name(by))
    elif by is None:
        unfence(source, key)
    else:
        fence(source, key, by)


async def go_on_apart(jet: Jet) -> None:
    """Let a store that goes on in place of another give tokens above all of its, and keep its leases; see above."""
    await raise_tokens(jet)
    ours: list[str] = []
    with suppress(BucketNotFoundError):
        names = (await jet.bucket(TOKENS_BUCKET)).keys()
        ours = [name async for name in names]
    for name in await jet.stream_names():
        stream = await jet.stream(name)
        if not name.startswith("KV_") or not (stream.config.allow_msg_ttl or stream.config.max_age.ns):
            continue
        state = (await stream.info()).state
        # Leases that others keep in buckets, too, but not all that expires.
        if state.last_seq and (name in ours or state.messages <= _MOST_OF_OTHERS):
            await jet.backend.call(StreamFill(stream=name, last_seq=state.last_seq + _APART))
            await _renew_leases_of(jet, stream, state)


async def _renew_leases_of(jet: Jet, stream: Stream, state: StreamState) -> None:
    async for page in pages(stream, max(state.first_seq, 1), state.last_seq, is_near=True):
        for message in page:
            is_lease = stream.config.max_age.ns or headers.first(message.hdrs, headers.TTL) is not None
            if not is_lease or operation_of(message.hdrs) != "put":
                continue
            # Not by its id: whoever wrote it would take the new one for its own.
            block = headers.without_headers(as_published(message) or b"", headers.MSG_ID)
            if (await stream.get_last_message(message.subject)).seq == message.seq:
                await jet.backend.publish(message.subject, message.data, block or None)
