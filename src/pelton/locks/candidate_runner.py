"""Runs a candidate: plays its campaign against the store, on a thread of its own.

Design: a :class:`CandidateRunner` does what its :class:`Campaign` asks for, one operation at a time, follows the key,
and reports the results to the campaign. A :class:`CandidateThread` gives it a thread, an event loop and a connection of
its own, so that the term of a leader that blocks its own event loop is renewed all the same, and a caller on any thread
who asks whether the term continues is answered from the clock, even if nothing runs any more.

What fails does not end a candidate: an operation has a time limit and is asked for again, following begins anew. A
connection that can never be used again is replaced by another: its own process may have given the store another key.
Only if the store can't be opened any more, or the opener that the candidate was made with has come to its end, the
candidate does as well, and a term it has with it.
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
_log: Final = logging.getLogger("pelton")
# The bounds of how long an operation may take, which is a share of the TTL.
_SHORTEST_TRY_S: Final = 0.1
_LONGEST_TRY_S: Final = 5.0
_AGAIN_S: Final = 0.2


class StoreEnded(NamedTuple):
    """The candidate came to an end: its store can't be used any more."""

    error: StoreError


Tell = Callable[[News | StoreEnded], None]


class CandidateRunner:
    """One candidate.

    ``connect`` returns the ballot over a new connection. ``tell`` gets the news; ``term`` is (token, time since boot it
    lasts until), for any thread.
    """

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
        """Stand until told to end."""
        following = self._runtime.spawn(self._follow(), "pelton election: follow")
        try:
            while not self._is_over:
                if self._has_failed:
                    # Its thread goes on: whoever ends it asks there.
                    await self._changed.wait()
                else:
                    await self._step()
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            if self._campaign.state == "leader" and not self._has_failed:
                self._tell(Lost("the candidate came to an end"))

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
        except Exception as error:  # whatever it is, the candidate goes on
            self._failed(error)
        self._changed.notify()

    async def _write(self, asked: WriteRecord, record: ElectionRecord) -> None:
        campaign, clock = self._campaign, self._runtime.clock
        hold = campaign.hold
        if hold is None and not asked.repeated:
            # All writes of a term say the same: also one that was stored though no answer came, which is repeated.
            self._since_ns = clock.now()
        revision = await within(clock, self._patience, record.write(asked, hold, self._since_ns))
        campaign.wrote(clock.boottime(), revision)

    def _failed(self, error: Exception) -> None:
        _log.info("an election could not be written or read, it is tried again: %s", error or type(error).__name__)
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
            except Exception as error:  # it is followed again, whatever it was
                _log.info("an election could not be followed, it is tried again: %s", error or type(error).__name__)
                self._campaign.recheck()
                self._changed.notify()
            await clock.sleep(_AGAIN_S)

    def _replace(self, record: ElectionRecord) -> None:
        """Go on over another connection, unless that is impossible, or done already."""
        if record is not self._record or self._has_failed:
            return
        try:
            self._record = self._connect()
        except FINAL_ERRORS as error:
            self._has_failed = True
            self.term = (0, 0.0)
            self._tell(StoreEnded(error))
        except Exception as error:  # it is tried again with whatever is asked for next
            _log.info("an election's store could not be opened again yet: %s", error)
        self._changed.notify()

    async def release(self, rest: float) -> None:
        """Give the key up, for others to win: for ``rest`` seconds, or until one has. The term must be at an end."""
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
            except Exception as error:  # then it runs out
                _log.info("an election could not be given up, its term runs out: %s", error or type(error).__name__)
        self._changed.notify()

    def doubted(self, token: int) -> None:
        """The term of this token was said to be over."""
        self._campaign.doubted(self._runtime.clock.boottime(), token)
        self._changed.notify()

    async def end(self) -> None:
        """Give the key up and stand no more."""
        try:
            await self.release(rest=math.inf)
        finally:
            self._is_over = True
            self._changed.notify()


class CandidateThread:
    """A thread, an event loop and a connection for one candidate."""

    def __init__(self, jet: Streams, record: ElectionRecord, campaign: Campaign, tell: Tell) -> None:
        self._jet = jet
        self.check_loop = jet.backend.check_loop
        self._backend: Backend | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._clock = jet.runtime.clock
        self._record, self._campaign, self._tell = record, campaign, tell
        self._ready: Future[CandidateRunner] = Future()
        self._thread = LoopThread(self._main, "pelton-election")

    async def open(self) -> None:
        """Begin to stand."""
        self._thread.start()
        await self._opened()

    async def _opened(self) -> CandidateRunner:
        # Whoever is cancelled while it waits must not cancel what the thread is about to answer.
        return await asyncio.shield(asyncio.wrap_future(self._ready))

    def holds(self, token: int) -> bool:
        """Whether the term of this token goes on, by the clock; from any thread. Once it does not, it never does."""
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
        """Return the ballot over a new connection; one before it is left."""
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
