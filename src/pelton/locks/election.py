"""Leader election: one of many candidates leads at a time, across tasks, processes and machines.

    async with jet.elect("scheduler", ttl=10) as term:     # waits until it leads
        await work(term.token)                             # is cancelled if the term is lost

    await jet.elect("scheduler", on_won=lead, on_lost=rest).run()     # for as long as the program runs

Why there are never two leaders: ``campaign.py``. What the key holds: ``candidate_runner.py``. This module runs in
the user's event loop: the events of the candidate's thread arrive in order through one queue, and nothing is given up
in the store before the user's side of the term has ended.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import platform
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypedDict

from pelton.api import Backoff, BucketNotFoundError, ConfigError, ElectionError, TermLostError
from pelton.api.arguments import check_callback, check_instance, check_text
from pelton.api.build import seconds_to_ns
from pelton.api.times import SECOND, Seconds
from pelton.buckets.bucket_settings import check_bucket, check_key
from pelton.jet import Streams
from pelton.locks.campaign import Campaign, Campaigned, Lost, News, State, Won
from pelton.locks.candidate_runner import CandidateThread, ElectionRecord, Leader, StoreEnded, open_record
from pelton.runtime import Home, until_ended


class Term:
    """A term that was won.

    ``token`` is its fencing token: larger than the tokens of all terms before it. Send it along with your writes to
    other systems, and let them refuse a smaller one than they have seen.
    """

    def __init__(self, election: str, name: str, token: int, office: CandidateThread) -> None:
        self.election = election
        self.name = name
        self.token = token
        self._office = office
        self._reason = ""
        self._ended = asyncio.Event()

    @property
    def is_held(self) -> bool:
        """Whether it continues, by the clock, from any thread: even if the event loop is blocked."""
        if not self._reason and not self._office.holds(self.token):
            # Once lost it stays lost, whatever is confirmed later.
            self._reason = "it could not be renewed in time"
        return not self._reason

    @property
    def reason(self) -> str:
        """Why it ended; empty while it continues."""
        return self._reason

    def check(self) -> None:
        """Raise TermLostError unless the term continues; for steps of long work on a thread."""
        if not self.is_held:
            raise TermLostError(self.election, self.token, self._reason)

    async def lost(self) -> str:
        """Wait for the end of the term, and return why."""
        self._office.check_loop()
        await self._ended.wait()
        return self._reason

    def end(self, reason: str) -> None:
        """Note that it ended; called by the candidate."""
        self._reason = self._reason or reason
        self._ended.set()

    def __repr__(self) -> str:
        return f"<term {self.token} of {self.name!r} in election {self.election!r}{', lost' * bool(self._reason)}>"


OnTerm = Callable[[Term], Awaitable[object] | object]
OnState = Callable[[State], Awaitable[object] | object]
_log: Final = logging.getLogger("pelton.locks")
_SPREAD: Final = 0.02
_BACKOFF: Final = Backoff(base=0.05, factor=2.0, cap=2.0, jitter=0.5)
_STEPPED_DOWN: Final = "it stepped down"
_STOPPED: Final = "it was stopped"


class ElectionOptions(TypedDict, total=False):
    """Options of a candidate.

    ``name`` of the candidate (generated). ``ttl``, the term, 1 s to 1 h: how long a crashed leader keeps others
    waiting; fixed when the election's bucket is created (30 s). ``bucket``: the key-value bucket, with the election's
    name as the key, to share with other clients; otherwise a bucket for this election alone. ``on_won(term)``,
    ``on_lost(term)`` and ``on_campaign(state)`` are called, and awaited. ``splay``: the first campaign waits up to this
    many seconds. ``backoff``: pauses after failed campaigns. ``strict``: the limits of nats-kv-leader-elect, 30 s to 1
    h.
    """

    name: str
    ttl: Seconds
    bucket: str
    on_won: OnTerm
    on_lost: OnTerm
    on_campaign: OnState
    splay: Seconds
    backoff: Backoff
    strict: bool


class _StepDown:
    """The user asked to step down."""


class _Stop:
    """The user asked to stop."""


class _Failed:
    """The leader's work raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Election:
    """A candidate of an election; returned by ``jet.elect``. Run it only once at a time."""

    def __init__(
        self,
        jet: Streams,
        election: str,
        *,
        name: str | None = None,
        ttl: Seconds | None = None,
        bucket: str | None = None,
        on_won: OnTerm | None = None,
        on_lost: OnTerm | None = None,
        on_campaign: OnState | None = None,
        splay: Seconds = 0,
        backoff: Backoff | None = None,
        strict: bool = False,
    ) -> None:
        self.election = election
        about = self._about
        if name == "":
            raise ConfigError(f"{about}: a candidate needs a name")
        check_bucket(bucket or f"ELECTION_{election}")
        check_key(election)
        if name is not None:
            check_text(about, "name", name)
        for what, callback in (("on_won", on_won), ("on_lost", on_lost), ("on_campaign", on_campaign)):
            check_callback(about, what, callback)
        if backoff is not None:
            check_instance(about, "backoff", backoff, Backoff, "give a pelton.Backoff, or leave it out")
        self.name: str = name or f"{platform.node()}-{os.getpid()}-{jet.runtime.ids.new()[-6:]}"
        self.bucket: str = bucket or f"ELECTION_{election}"
        self._jet = jet
        self._ttl = None if ttl is None else seconds_to_ns("ttl", ttl, about) / SECOND
        self._on_won, self._on_lost, self._on_campaign = on_won, on_lost, on_campaign
        self._splay = seconds_to_ns("splay", splay, about) / SECOND
        self._backoff = backoff or _BACKOFF
        self._strict = strict
        self._state: State = "unknown"
        self._term: Term | None = None
        self._work: asyncio.Task[Any] | None = None
        self._office: CandidateThread | None = None
        self._inbox: asyncio.Queue[News | StoreEnded | _StepDown | _Stop | _Failed] | None = None
        self._block: _Block | None = None
        self._home = Home()

    @property
    def _about(self) -> str:
        return f"election {self.election!r}"

    @property
    def _log_fields(self) -> dict[str, str]:
        return {"election": self.election, "candidate": self.name}

    # --- looking

    @property
    def state(self) -> State:
        """``unknown`` before it is run, ``candidate``, or ``leader``."""
        return self._state

    @property
    def term(self) -> Term | None:
        """The current term, if this candidate leads."""
        return self._term

    async def leader(self) -> Leader | None:
        """Return the current holder of the key, and since when; None if there is none.

        A new holder may not have announced its win yet: it waits until its predecessor must have stood down.
        Raises ConfigError.
        """
        try:
            record = await self._record(make=False)
        except BucketNotFoundError:
            return None
        return await record.leader()

    async def _record(self, *, make: bool) -> ElectionRecord:
        return await open_record(
            self._jet, self.bucket, self.election, self.name, self._ttl, strict=self._strict, make=make
        )

    # --- running

    async def run(self) -> None:
        """Campaign, lead, campaign again, until :meth:`stop` or cancelled; then step down.

        ``on_won(term)`` is called when the term began, ``on_lost(term)`` when it ended, also when this call ends. A
        coroutine function as ``on_won`` may run for the whole term: it is cancelled when the term ends. An error that
        a callback raises is logged, and ends this call, which raises it. Raises ConfigError, and what the store raises
        if it can't be used any more: then the term is lost.
        """
        await self._open()
        try:
            await self._serve()
        finally:
            await self._leave()

    def stop(self) -> None:
        """Step down, and end :meth:`run`; from any thread. No effect when it does not run."""
        self._wish(_Stop())

    def step_down(self) -> None:
        """Give the term up to another candidate, and campaign again when one has won, or after a TTL.

        From any thread. No effect when it does not run.
        """
        self._wish(_StepDown())

    def _wish(self, wish: _StepDown | _Stop) -> None:
        inbox = self._inbox
        if inbox is not None:
            self._home.call(lambda: inbox.put_nowait(wish))

    def _check_free(self) -> None:
        self._jet.backend.check_loop()
        if self._inbox is not None:
            raise ConfigError(f"{self._about}: this candidate already runs; create another with jet.elect")

    async def _open(self) -> None:
        self._check_free()
        inbox = self._inbox = asyncio.Queue()
        self._home = Home(asyncio.get_running_loop())
        try:
            record = await self._record(make=True)
            loop = asyncio.get_running_loop()

            def tell(news: News | StoreEnded) -> None:
                # The loop may be closed under a program that ends without stopping.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(inbox.put_nowait, news)

            self._ttl_s = record.ttl
            self._office = CandidateThread(self._jet, record, self._campaign(record.ttl), tell)
            await self._office.open()
        except BaseException:
            await self._leave()
            raise
        self._state = "candidate"

    def _campaign(self, ttl: float) -> Campaign:
        runtime = self._jet.runtime
        base = runtime.ids.new()
        chance = runtime.random
        return Campaign(
            ttl,
            new_id=lambda: f"{base}.{runtime.ids.new()[-10:]}",
            pause=lambda tries: self._backoff.delay(tries, chance),
            spread=chance.uniform(0.0, ttl * _SPREAD),
            once=self._block is not None,
            due=runtime.clock.boottime() + chance.uniform(0.0, self._splay),
        )

    async def _serve(self) -> None:
        assert self._inbox is not None
        assert self._office is not None
        while True:
            news = await self._inbox.get()
            if isinstance(news, Won):
                await self._begin(news.token)
            elif isinstance(news, Lost):
                await self._end(news.reason)
            elif isinstance(news, Campaigned):
                await self._call("on_campaign", self._on_campaign, news.state)
            elif isinstance(news, _Failed):
                raise news.error
            elif isinstance(news, StoreEnded):
                if self._block is not None:
                    # It says more than a lost term.
                    self._block.error = news.error
                _log.error("%s: candidate %r ends: %s", self._about, self.name, news.error, extra=self._log_fields)
                await self._end(f"its store cannot be used any more ({news.error})")
                raise news.error
            elif isinstance(news, _Stop):
                return
            elif self._term is not None:
                await self._end(_STEPPED_DOWN)
                await self._office.release(self._ttl_s)

    # --- terms

    async def _begin(self, token: int) -> None:
        assert self._office is not None
        term = Term(self.election, self.name, token, self._office)
        if not term.is_held:
            # It ended before it could begin; a later event says so.
            return
        self._term, self._state = term, "leader"
        if self._block is not None:
            self._block.begin(term)
        elif inspect.iscoroutinefunction(self._on_won):
            self._work = self._jet.runtime.spawn(self._lead(term), f"pelton election: {self.election}")
        else:
            await self._call("on_won", self._on_won, term)

    async def _lead(self, term: Term) -> None:
        assert self._inbox is not None
        try:
            await self._call("on_won", self._on_won, term)
        except Exception as error:
            self._inbox.put_nowait(_Failed(error))

    async def _end(self, reason: str) -> None:
        term, self._term = self._term, None
        if self._state == "leader":
            self._state = "candidate"
        if term is None:
            return
        term.end(reason)
        if self._block is not None:
            self._block.end()
        work, self._work = self._work, None
        try:
            if work is not None:
                await _end_task(work)
        finally:
            await self._call("on_lost", self._on_lost, term)

    async def _call(self, what: str, callback: Callable[[Any], Awaitable[object] | object] | None, told: Any) -> None:
        try:
            result = None if callback is None else callback(told)
            if inspect.isawaitable(result):
                await result
        except Exception:  # it ends the candidate, whose caller may not look at what run() raises
            fields = self._log_fields
            _log.exception("%s: %s of candidate %r raised: it ends", self._about, what, self.name, extra=fields)
            raise

    async def _leave(self) -> None:
        try:
            await self._end(_STOPPED)
        finally:
            self._inbox, self._state = None, "unknown"
            office, self._office = self._office, None
            if office is not None:
                # If this is cancelled, the candidate must not lead for ever, on a thread that cannot be ended any more.
                await self._jet.runtime.finish(office.close(), f"pelton election: leave {self.election}")

    # --- as a context

    async def __aenter__(self) -> Term:
        """Campaign, and return the term when it began."""
        # A refusal here does not affect the term of a candidate that already runs.
        self._check_free()
        block = self._block = _Block()
        try:
            await self._open()
            block.serving = self._jet.runtime.spawn(self._serve_block(block), f"pelton election: {self.election}")
            return await block.won
        except BaseException:
            await self._leave_block(block)
            raise

    async def _serve_block(self, block: _Block) -> None:
        try:
            await self._serve()
            block.fail(ElectionError(self.election, f"election {self.election!r} was stopped by another caller"))
        except Exception as error:  # a callback's: the block raises it
            block.fail(error)

    async def _leave_block(self, block: _Block) -> None:
        block.is_over = True
        self._block = None
        try:
            if block.serving is not None:
                await _end_task(block.serving)
        finally:
            await self._leave()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Step down. Raises TermLostError if the term was lost before."""
        self._jet.backend.check_loop()
        block = self._block
        assert block is not None
        term = block.won.result()
        is_lost = not term.is_held
        try:
            await self._leave_block(block)
        finally:
            is_ours = block.uncancel()
        if kind is not None and not (is_ours and kind is asyncio.CancelledError):
            return
        if block.error is not None:
            raise block.error
        if is_lost:
            raise TermLostError(self.election, term.token, term.reason) from None


async def _end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, even if cancelled meanwhile: the key is released after it, not before."""
    task.cancel()
    try:
        await asyncio.wait([task])
    finally:
        await until_ended(task)


class _Block:
    """An ``async with`` block: the task that runs it is cancelled when the term is lost."""

    def __init__(self) -> None:
        self.won: asyncio.Future[Term] = asyncio.get_running_loop().create_future()
        self.serving: asyncio.Task[None] | None = None
        self.is_over = False
        self.error: BaseException | None = None
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._is_cancelled = False

    def begin(self, term: Term) -> None:
        """Let the block start."""
        if not self.won.done():
            self.won.set_result(term)

    def end(self) -> None:
        if not self.is_over and not self._is_cancelled and self._task is not None and self.won.done():
            # False for a finished task: the blocking API enters and leaves in one task each.
            self._is_cancelled = self._task.cancel()

    def fail(self, error: BaseException) -> None:
        self.error = error
        if self.won.done():
            self.end()
        else:
            self.won.set_exception(error)

    def uncancel(self) -> bool:
        """Take our cancellation back; return whether it was the only one."""
        return self._is_cancelled and self._task is not None and self._task.uncancel() <= self._before
