"""Runs a candidate on a thread of its own, and reads, writes and follows the key of its election.

**The key.** The format is that of nats-kv-leader-elect: a key-value bucket whose TTL is the term, and under the key the
name of the candidate that leads. Pelton adds headers that others ignore: the term of a renewal, and on the deletion of
a leader that stepped down a note that it had stood down before.

**The candidate.** A :class:`CandidateRunner` executes the operations of its :class:`Campaign`, one at a time, follows
the key, and reports the results to the campaign. A :class:`CandidateThread` gives it its own thread, event loop and
connection, so that the term of a leader that blocks its own event loop is still renewed, and a caller on any thread
that asks whether the term continues is answered from the clock, even if nothing runs any more.

Failures do not end a candidate: an operation has a time limit and is retried, following starts again. A
connection that can never be used again is replaced: its own process may have given the store another key.
Only if the store can't be opened any more, or the handle that created the candidate has failed for good, the
candidate ends as well, and so does its term.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from pelton.api import (
    Backend,
    BucketNotFoundError,
    ConfigError,
    Delivered,
    NoStreamForSubjectError,
    PeltonError,
    StoredMessage,
    StoreError,
    StreamConfig,
    StreamInfo,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
    rfc3339,
)
from pelton.api.store_errors import FINAL_ERRORS
from pelton.buckets import make_token_bucket
from pelton.buckets.bucket_settings import check_key, key_prefix, stream_of
from pelton.buckets.coding import OPERATION_HEADER, operation_of, stored_block
from pelton.jet import Stream, Streams
from pelton.jet.message_source import OrderedReader
from pelton.jet.stream import last_of
from pelton.locks.campaign import (
    SHARES,
    Campaign,
    DeleteRecord,
    Lost,
    News,
    Observation,
    ReadRecord,
    TermHold,
    WriteRecord,
)
from pelton.runtime import LoopThread, Runtime, Signal, within

_DEFAULT_TTL_S: Final = 30.0
_SHORTEST_S: Final = 1.0
_STRICT_SHORTEST_S: Final = 30.0
_LONGEST_S: Final = 3600.0
_TERM: Final = "Pelton-Term"
_FIRST: Final = "0"
_SINCE: Final = "Pelton-Term-Since"
_RELEASED: Final = "Pelton-Term-Released"


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The leader. ``token`` and ``since_ns`` (when it won, by its wall clock) are 0 for leaders of other clients.

    ``renewed_ns`` is when it last renewed the key, ``revision`` the revision of the key.
    """

    name: str
    """The name of the candidate that leads."""
    token: int
    since_ns: int
    renewed_ns: int
    revision: int

    @property
    def since(self) -> str:
        """When the key was won, as RFC 3339 text; empty if unknown."""
        return rfc3339(self.since_ns) if self.since_ns else ""


class ElectionRecord:
    """The key of one election, written by the candidate ``name``. ``ttl`` in seconds."""

    def __init__(self, jet: Streams, stream: Stream, key: str, name: str) -> None:
        self._jet = jet
        self._stream = stream
        self._subject = key_prefix(stream.config) + check_key(key)
        self._name = name
        self._value = name.encode()

    @property
    def ttl(self) -> float:
        """How long a term lasts without renewal."""
        return self._stream.config.max_age.seconds

    def over(self, jet: Streams) -> ElectionRecord:
        """Return the same record over another connection."""
        other = ElectionRecord.__new__(ElectionRecord)
        other.__dict__.update(self.__dict__)
        other._jet, other._stream = jet, Stream(jet.backend, self._stream.config, jet.runtime)
        return other

    # --- reading

    async def look(self) -> Observation:
        """Return the current content of the key."""
        info: StreamInfo | None = None
        while True:
            if (message := await last_of(self._stream, self._subject)) is not None:
                return _observation(message)
            if info is not None:
                last = info.state.last_seq
                return Observation("absent", last, is_unused=last < max(info.config.first_seq, 1))
            # Once more after that: what was written in between would be taken for a write that has vanished, and
            # a leader that stepped down in between be waited for as if it might still lead.
            info = await self._stream.info()

    async def leader(self) -> Leader | None:
        """Return the leader that the key names."""
        message = await last_of(self._stream, self._subject)
        if message is None or _observation(message).kind != "put":
            return None
        block = stored_block(message) or b""
        token, since = headers.first(block, _TERM), headers.first(block, _SINCE)
        first = token == _FIRST
        return Leader(
            name=message.data.decode(errors="replace"),
            token=message.seq if first else int(token or 0),
            since_ns=int(since or (message.time_ns if first else 0)),
            renewed_ns=message.time_ns,
            revision=message.seq,
        )

    async def follow(self) -> AsyncGenerator[Observation, None]:
        """Yield the content of the key, and its changes, for ever."""
        reader = OrderedReader(
            self._jet.backend,
            self._jet.runtime,
            self._stream.name,
            deliver_policy="last_per_subject",
            filter_subject=self._subject,
            headers_only=True,
        )
        async with aclosing(reader.follow()) as deliveries:
            async for delivered in deliveries:
                if delivered is not None:
                    yield _observation(delivered)

    # --- writing

    async def write(self, write: WriteRecord, hold: TermHold | None, since_ns: int) -> int:
        """Write our name and return the revision; ``since_ns`` is when the term began.

        Raises WrongLastSequenceError, and what the store raises.
        """
        told = {_TERM: _FIRST if hold is None else str(hold.token), _SINCE: str(since_ns)}
        ack = await self._jet.publish(
            self._subject, self._value, msg_id=write.msg_id, headers=told, expected_last_subject_seq=write.expected
        )
        return ack.seq

    async def release(self, release: DeleteRecord) -> None:
        """Delete the key; a clean end is remembered for as long as the bucket allows."""
        marks = {OPERATION_HEADER: "DEL"}
        if release.clean:
            marks[_RELEASED] = str(release.expected)
        lasting = release.clean and self._stream.config.allow_msg_ttl
        await self._jet.publish(
            self._subject, headers=marks, expected_last_subject_seq=release.expected, ttl="never" if lasting else None
        )


def _observation(message: StoredMessage | Delivered) -> Observation:
    block = stored_block(message)
    if operation_of(block) == "put":
        return Observation("put", message.seq, headers.first(block or b"", headers.MSG_ID) or "")
    gave_up = int(headers.first(block or b"", _RELEASED) or 0)
    return Observation("released" if gave_up else "ended", message.seq, gave_up=gave_up)


async def open_record(
    jet: Streams, bucket: str, key: str, name: str, ttl: float | None, *, strict: bool, make: bool
) -> ElectionRecord:
    """Return the record, creating its bucket if missing and ``make``. Raises ConfigError, BucketNotFoundError."""
    shortest = _STRICT_SHORTEST_S if strict else _SHORTEST_S
    _check_ttl(f"election {bucket}/{key}", _DEFAULT_TTL_S if ttl is None else ttl, shortest)
    try:
        stream = await jet.stream(stream_of(bucket))
    except StreamNotFoundError:
        if not make:
            raise BucketNotFoundError(bucket) from None
        # The limit marker shows watchers an expiry, and lets the marker of a clean end outlive the TTL. If another
        # candidate is faster, with another TTL, its bucket is checked next.
        lasts = _DEFAULT_TTL_S if ttl is None else ttl
        await make_token_bucket(jet, bucket, ttl=lasts, limit_marker_ttl=lasts, description="an election")
        stream = await jet.stream(stream_of(bucket))
    _check_bucket(bucket, stream.config, ttl, shortest)
    return ElectionRecord(jet, stream, key, name)


def _check_bucket(bucket: str, config: StreamConfig, ttl: float | None, shortest: float) -> None:
    kept = config.max_age.seconds
    if ttl is not None and abs(kept - ttl) > 1e-6:
        raise ConfigError(f"bucket {bucket!r} has a TTL of {kept:g} s, which is the term: leave ttl={ttl:g} out")
    _check_ttl(f"bucket {bucket!r}", kept, shortest)


def _check_ttl(what: str, ttl: float, shortest: float) -> None:
    if not shortest <= ttl <= _LONGEST_S:
        raise ConfigError(
            f"{what}: a TTL of {ttl:g} s; the term of an election is {shortest:g} s to {_LONGEST_S:g} s, "
            "and is the TTL of its bucket"
        )


T = TypeVar("T")
_log: Final = logging.getLogger("pelton.locks")
# The bounds of an operation's time limit, which is a share of the TTL.
_SHORTEST_TRY_S: Final = 0.1
_LONGEST_TRY_S: Final = 5.0
_AGAIN_S: Final = 0.2


class StoreEnded(NamedTuple):
    """The candidate ended: its store can't be used any more."""

    error: StoreError


Tell = Callable[[News | StoreEnded], None]


class CandidateRunner:
    """One candidate.

    ``connect`` returns the election record over a new connection. ``tell`` gets the events; ``term`` is (token, its end
    in seconds since boot), for any thread.
    """

    term: tuple[int, float]

    def __init__(self, runtime: Runtime, connect: Callable[[], ElectionRecord], campaign: Campaign, tell: Tell) -> None:
        self._runtime = runtime
        self._connect = connect
        self._record = record = connect()
        self._campaign = campaign
        self._tell = tell
        self._changed = Signal()
        self._is_over = False
        self._has_failed = False
        self._since_ns = 0
        self._patience = min(max(record.ttl * SHARES.longest_try, _SHORTEST_TRY_S), _LONGEST_TRY_S)
        self.term = (0, 0.0)

    async def run(self) -> None:
        """Stand for election until :meth:`end`."""
        following = self._runtime.spawn(self._follow(), "pelton election: follow")
        try:
            while not self._is_over:
                if self._has_failed:
                    # Its thread continues: it is ended there.
                    await self._changed.wait()
                else:
                    await self._step()
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            if self._campaign.state == "leader" and not self._has_failed:
                self._tell(Lost("the candidate ended"))

    async def _step(self) -> None:
        clock, seen = self._runtime.clock, self._changed.generation
        asked = self._campaign.next(clock.boottime())
        self._report()
        if asked is not None:
            self._runtime.spawn(self._do(asked), "pelton election: ask")
        wake = self._campaign.wake_at()
        await self._changed.wait_at_most(clock, None if wake is None else wake - clock.boottime(), seen)

    def _report(self) -> None:
        hold = self._campaign.hold
        self.term = (hold.token, self._campaign.stands_until) if hold is not None else (0, 0.0)
        for news in self._campaign.news():
            self._tell(news)

    async def _do(self, asked: WriteRecord | ReadRecord) -> None:
        campaign, clock, record = self._campaign, self._runtime.clock, self._record
        try:
            if isinstance(asked, ReadRecord):
                observation = await within(clock, self._patience, record.look())
                campaign.on_read(clock.boottime(), observation)
            else:
                await self._write(asked, record)
        except WrongLastSequenceError:
            campaign.on_refusal(clock.boottime())
        except (StreamNotFoundError, NoStreamForSubjectError) as error:
            self._note_failure(error)
            campaign.forget(clock.boottime())
        except FINAL_ERRORS as error:
            self._note_failure(error)
            self._replace(record)
        except Exception as error:  # whatever it is, the candidate continues
            self._note_failure(error)
        self._changed.notify()

    async def _write(self, asked: WriteRecord, record: ElectionRecord) -> None:
        campaign, clock = self._campaign, self._runtime.clock
        hold = campaign.hold
        if hold is None and not asked.repeated:
            # All writes of a term have the same content: even a repeated one that was stored without an answer.
            self._since_ns = clock.now()
        revision = await within(clock, self._patience, record.write(asked, hold, self._since_ns))
        campaign.wrote(clock.boottime(), revision)

    def _note_failure(self, error: Exception) -> None:
        _log.info("an election could not be written or read, retrying: %s", error or type(error).__name__)
        self._campaign.on_failure(self._runtime.clock.boottime())

    async def _follow(self) -> None:
        clock = self._runtime.clock
        while True:
            record = self._record
            try:
                async for observation in record.follow():
                    self._campaign.saw(clock.boottime(), observation)
                    self._changed.notify()
            except FINAL_ERRORS:
                self._campaign.recheck()
                self._replace(record)
            except Exception as error:  # whatever it is, follow again
                _log.info("an election could not be followed, retrying: %s", error or type(error).__name__)
                self._campaign.recheck()
                self._changed.notify()
            await clock.sleep(_AGAIN_S)

    def _replace(self, record: ElectionRecord) -> None:
        """Continue over another connection, unless that is impossible, or already done."""
        if record is not self._record or self._has_failed:
            return
        try:
            self._record = self._connect()
        except FINAL_ERRORS as error:
            self._has_failed = True
            self.term = (0, 0.0)
            self._tell(StoreEnded(error))
        except Exception as error:  # the next operation tries again
            _log.info("an election's store could not be opened again yet: %s", error)
        self._changed.notify()

    async def release(self, rest: float) -> None:
        """Give the key up, for others to win: for ``rest`` seconds, or until one has. The term must have ended."""
        while self._campaign.is_busy:
            await self._changed.wait()
        if self._has_failed:
            return
        clock = self._runtime.clock
        asked = self._campaign.release(clock.boottime(), rest)
        self._report()
        if asked is not None:
            try:
                await within(clock, self._patience, self._record.release(asked))
            except Exception as error:  # then it expires
                _log.info("an election could not be given up, its term will expire: %s", error or type(error).__name__)
        self._changed.notify()

    def doubt(self, token: int) -> None:
        """Note that a caller learnt that the term of this token is over."""
        self._campaign.doubt(self._runtime.clock.boottime(), token)
        self._changed.notify()

    async def end(self) -> None:
        """Give the key up and stop standing for election."""
        try:
            await self.release(rest=math.inf)
        finally:
            self._is_over = True
            self._changed.notify()


class CandidateThread:
    """Runs one candidate on its own thread, event loop and connection."""

    def __init__(self, jet: Streams, record: ElectionRecord, campaign: Campaign, tell: Tell) -> None:
        self._jet = jet
        self.check_loop: Callable[[], None] = jet.backend.check_loop
        self._backend: Backend | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._clock = jet.runtime.clock
        self._record, self._campaign, self._tell = record, campaign, tell
        self._ready: Future[CandidateRunner] = Future()
        self._thread = LoopThread(self._main, "pelton-election")

    async def open(self) -> None:
        """Start to stand for election."""
        self._thread.start()
        await self._runner()

    async def _runner(self) -> CandidateRunner:
        # A waiter that is cancelled must not cancel the answer of the thread.
        return await asyncio.shield(asyncio.wrap_future(self._ready))

    def holds(self, token: int) -> bool:
        """Whether the term of this token continues, by the clock; from any thread. Once False, it stays False."""
        runner = self._ready.result()
        current, until = runner.term
        if current == token and self._clock.boottime() < until:
            return True
        self._thread.call_soon(runner.doubt, token)
        return False

    async def release(self, rest: float) -> None:
        """Give the key up, and stand again later."""
        await self._thread.run((await self._runner()).release(rest))

    async def close(self) -> None:
        """Give the key up and end the thread. Idempotent."""
        if self._thread.is_alive:
            await self._thread.run((await self._runner()).end())
            await asyncio.to_thread(self._thread.join)

    async def _main(self) -> None:
        try:
            await self._stand()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _stand(self) -> None:
        try:
            runner = CandidateRunner(self._jet.runtime, self._open_record, self._campaign, self._tell)
            self._ready.set_result(runner)
            await runner.run()
        finally:
            self._leave()
            if self._leaving:
                await asyncio.wait(self._leaving)

    def _open_record(self) -> ElectionRecord:
        """Return the election record over a new connection; the previous connection is closed."""
        backend = self._jet.backend.clone()
        self._leave()
        self._backend = backend
        return self._record.over(Streams(backend, self._jet.runtime))

    def _leave(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            leaving = self._jet.runtime.spawn(self._close(backend), "pelton election: leave a connection")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _close(self, backend: Backend) -> None:
        with suppress(PeltonError, TimeoutError):
            await within(self._clock, _LONGEST_TRY_S, backend.close())
