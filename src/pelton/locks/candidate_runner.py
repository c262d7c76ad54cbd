"""Runs a candidate: executes its campaign against the store, on its own thread.

Design: a :class:`CandidateRunner` executes the operations of its :class:`Campaign`, one at a time, follows the key,
and reports the results to the campaign. A :class:`CandidateThread` gives it its own thread, event loop and connection,
so that the term of a leader that blocks its own event loop is still renewed, and a caller on any thread
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
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from pelton.api import (
    Backend,
    NoStreamForSubjectError,
    PeltonError,
    StoreError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet import Streams
from pelton.locks.campaign import SHARES, Campaign, Lost, News, ReadRecord, WriteRecord
from pelton.locks.election_record import ElectionRecord
from pelton.runtime import LoopThread, Runtime, Signal, within

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
                campaign.looked(clock.boottime(), observation)
            else:
                await self._write(asked, record)
        except WrongLastSequenceError:
            campaign.refused(clock.boottime())
        except (StreamNotFoundError, NoStreamForSubjectError) as error:
            self._failed(error)
            campaign.forget(clock.boottime())
        except FINAL_ERRORS as error:
            self._failed(error)
            self._replace(record)
        except Exception as error:  # whatever it is, the candidate continues
            self._failed(error)
        self._changed.notify()

    async def _write(self, asked: WriteRecord, record: ElectionRecord) -> None:
        campaign, clock = self._campaign, self._runtime.clock
        hold = campaign.hold
        if hold is None and not asked.repeated:
            # All writes of a term have the same content: even a repeated one that was stored without an answer.
            self._since_ns = clock.now()
        revision = await within(clock, self._patience, record.write(asked, hold, self._since_ns))
        campaign.wrote(clock.boottime(), revision)

    def _failed(self, error: Exception) -> None:
        _log.info("an election could not be written or read, retrying: %s", error or type(error).__name__)
        self._campaign.failed(self._runtime.clock.boottime())

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

    def doubted(self, token: int) -> None:
        """Note that a caller was told that the term of this token is over."""
        self._campaign.doubted(self._runtime.clock.boottime(), token)
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
        await self._opened()

    async def _opened(self) -> CandidateRunner:
        # A waiter that is cancelled must not cancel the answer of the thread.
        return await asyncio.shield(asyncio.wrap_future(self._ready))

    def holds(self, token: int) -> bool:
        """Whether the term of this token continues, by the clock; from any thread. Once False, it stays False."""
        runner = self._ready.result()
        current, until = runner.term
        if current == token and self._clock.boottime() < until:
            return True
        self._thread.call_soon(runner.doubted, token)
        return False

    async def release(self, rest: float) -> None:
        """Give the key up, and stand again later."""
        await self._thread.run((await self._opened()).release(rest))

    async def close(self) -> None:
        """Give the key up and end the thread. Idempotent."""
        if self._thread.is_alive:
            await self._thread.run((await self._opened()).end())
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
            runner = CandidateRunner(self._jet.runtime, self._connected, self._campaign, self._tell)
            self._ready.set_result(runner)
            await runner.run()
        finally:
            self._leave()
            if self._leaving:
                await asyncio.wait(self._leaving)

    def _connected(self) -> ElectionRecord:
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
