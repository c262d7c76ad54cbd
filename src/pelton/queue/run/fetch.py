"""Taking jobs for a worker: as many as its slots can start soon, in the order of their priorities.

**Taking jobs in the order of their priorities, for the worker and for claims.** ``model/turns.py`` decides whose
turn it is. While jobs without a priority keep a worker busy, it asks the other channels every few milliseconds, or, if
no job with a priority is stored, only from time to time whether one is. While it has nothing to do, a pull waits on
each channel. So a queue without priorities pays nothing for them. Jobs with a tenant come through the same channels,
and are waited for by themselves.

**Taking jobs for a worker: as many as its slots can start soon, until it stops or has nothing left to do.** One fetcher
for each channel asks for as many jobs as there are free slots, and a few more when jobs are short (`Appetite`), so that
quick jobs do not wait for the store and slow ones are not hoarded. What two fetchers have taken for the same slots is
handed back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from pelton.api import ConsumerNotFoundError, PeltonError, PullRequest
from pelton.api.json_values import UNREADABLE
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.consumer import pages_of
from pelton.jet.registers import ASK_AGAIN_S, Follower, is_busy
from pelton.queue.model.limits import Order, decode_order
from pelton.queue.model.turns import RankTurn, RankTurns
from pelton.queue.run.leased_jobs import LeasedJob, LeasedJobs
from pelton.queue.run.parking import VersionRecall
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.jet import Message
    from pelton.queue.job import JobLookup
    from pelton.queue.registry import QueueContext
    from pelton.queue.run.attempt import JobAttempt
    from pelton.queue.run.slots import JobBatches, JobSlots, WorkerSettings
    from pelton.runtime import Runtime

_log: Final = logging.getLogger("pelton.queue")
J = TypeVar("J", bound=LeasedJob)


_PAGE: Final = 256
_PULL_S: Final = 30.0
_INACTIVE_S: Final = 120.0


def order_reader(
    queue: QueueContext, heed: Callable[[Order], None], begun: Callable[[], None] = lambda: None
) -> Follower[Message]:
    """Return what calls ``heed`` with each order that holds, then ``begun``, and then ``heed`` with every new one.

    What is read a second time after an outage changes nothing.
    """

    async def saw(one: Message | None) -> None:
        if one is None:
            begun()
            return
        # One that cannot be read is of a newer version; other orders still count.
        with suppress(*UNREADABLE):
            heed(decode_order(one.data))

    outage = queue.outage("its orders", is_busy)
    return Follower(partial(_read_orders, queue), saw, outage.wait, outage.end)


async def _read_orders(queue: QueueContext) -> AsyncGenerator[Message | None, None]:
    """Yield orders by a consumer, which costs an idle worker less than being pushed to."""
    stream = await queue.jet.stream(queue.names.control)
    consumer = await stream.create_consumer(
        ack_policy="none", deliver_policy="last_per_subject", filter_subject=">", inactive_threshold=_INACTIVE_S
    )
    try:
        async with aclosing(pages_of(consumer)) as found:
            async for page in found:
                for message in page:
                    yield message
        yield None
        while True:
            for message in await consumer.fetch(_PAGE, timeout=_PULL_S):
                yield message
    except ConsumerNotFoundError:
        # It was away for too long: the next one begins at once.
        return
    finally:
        with suppress(PeltonError):
            await consumer.delete()


class FollowsStream(Protocol):
    """What carries out messages of a queue."""

    async def follow(self) -> None:
        """Carry them out for ever, once there are any."""


class FlowFollower(Protocol):
    """What carries out the flows of a queue, and the signals to its jobs, beside a worker."""

    jobs: JobLookup

    @property
    def parts(self) -> Sequence[FollowsStream]:
        """Those that follow a stream each."""

    def heed(self, order: Order) -> None:
        """Begin what an order says that the queue has."""

    async def is_idle(self) -> bool:
        """Whether nothing can be done now: it may be later."""

    async def quiet(self) -> tuple[int, ...] | None:
        """Return None while something is to be done, else numbers that grow with all that happens."""


class RankedTakes(Generic[J]):
    """Takes jobs that are there, the highest priority first."""

    def __init__(self, held: LeasedJobs[J], runtime: Runtime) -> None:
        self._held = held
        self._clock = runtime.clock
        self._random = runtime.random
        self._has_drawn = False
        self.turns: RankTurns = RankTurns(held.source.ranked, held.source.channels)

    async def now(self, channel: str, most: int) -> list[J]:
        """Take up to ``most`` jobs of a higher priority, or of ``channel``. Empty only if there are none of both."""
        is_sure = False
        while True:
            is_sure = await self.look() or is_sure
            now = self._clock.boottime()
            turn = self.turns.next(channel, most, now)
            found = await self.ask(turn)
            if found or (turn.waits and is_sure):
                return found
            if turn.waits:
                # Jobs may have been stored while we looked.
                self.turns.doubt()

    async def look(self) -> bool:
        """Find out whether there are jobs with a priority, if that may have changed; return whether it was done."""
        now = self._clock.boottime()
        if not self.turns.is_unsure(now):
            return False
        has_ranked = await self._held.source.has_ranked()
        if not self._has_drawn:
            self._has_drawn = True
            if not self._held.source.is_new:
                self.turns.draw(self._random)
        self.turns.note_ranked(has_ranked, now)
        return True

    async def ask(self, turn: RankTurn) -> list[J]:
        """Take up to ``turn.most`` jobs that the channel whose turn it is has now."""
        found = await self._held.take(turn.channel, PullRequest(batch=turn.most, no_wait=True))
        self.turns.note_answer(turn.channel, len(found), self._clock.boottime(), is_below=turn.is_below)
        return found


# A worker that ends by itself, and waits for jobs of others to be settled, looks again after these pauses.
_FIRST_LOOK_S: Final = 0.02
_LONGEST_LOOK_S: Final = 0.2
# For how long it leaves a channel alone that had nothing, while another one brings jobs.
_SPARED_S: Final = 0.05
_AHEAD_S: Final = 0.02
_MOST_AHEAD: Final = 512
# In an exclusive queue: what shares its key with a job that is held is kept from other workers, too.
_MOST_AHEAD_KEYED: Final = 256
_UNKNOWN_JOB_S: Final = 1.0
_LONGEST_PULL_S: Final = 10.0


class Appetite:
    """What a worker with ``concurrency`` slots asks for; ``lease`` in seconds, ``exclusive``: the queue has keys."""

    def __init__(self, concurrency: int, lease: float, *, exclusive: bool) -> None:
        self._concurrency = concurrency
        self._lease = lease
        self._most_ahead = _MOST_AHEAD_KEYED if exclusive else _MOST_AHEAD
        self._job_seconds = _UNKNOWN_JOB_S

    def ran(self, seconds: float) -> None:
        """Note how long a job took."""
        self._job_seconds += 0.1 * (seconds - self._job_seconds)

    def room(self, running: int, waiting: int) -> int:
        """Return for how many more jobs there is room."""
        ahead = min(int(self._concurrency * _AHEAD_S / self._job_seconds), self._most_ahead)
        return self._concurrency - running + ahead - waiting

    def count_wanted(self, running: int, waiting: int) -> int:
        """Return how many jobs are worth asking for."""
        room = self.room(running, waiting)
        # Asking for a few at a time would cost a transaction each; half of the free slots are worth one.
        return room if room >= waiting else 0

    def request(self, wanted: int) -> PullRequest:
        """Return the request of a pull that waits for ``wanted`` jobs."""
        # For no longer than part of a lease: a lease counts from when the pull was requested.
        return PullRequest(batch=wanted, expires_ns=int(min(_LONGEST_PULL_S, self._lease / 3) * 1e9))


class JobIntake:
    """Takes the jobs of one worker, and fills its slots; ``stop`` is called when it is to end by itself.

    ``may_begin`` returns how many more jobs the worker may begin than it has taken. ``begun`` is notified when the
    worker knows what is cancelled or paused; ``changed`` whenever more jobs may be wanted, or there may be others to
    take.
    """

    def __init__(
        self,
        queue: QueueContext,
        settings: WorkerSettings,
        held: LeasedJobs[JobAttempt],
        slots: JobSlots[JobAttempt],
        batches: JobBatches,
        flows: Callable[[Callable[[], None]], FlowFollower],
        stop: Callable[[], None],
        may_begin: Callable[[], float],
    ) -> None:
        self._runtime = queue.runtime
        self._clock = queue.clock
        self._lease = queue.lease
        self._stats = queue.stats
        self._settings = settings
        self._held = held
        self._job_source = held.source
        self._slots = slots
        self._batches = batches
        self._waiting = slots.waiting
        self._parking = held.parking
        self._orders = held.orders
        # How many jobs the worker has taken so far.
        self.taken: int = 0
        self._stop = stop
        self._may_begin = may_begin
        self._stopping = False
        self.begun: Signal = Signal()
        self.changed: Signal = Signal()
        self.appetite: Appetite = Appetite(settings.concurrency, queue.lease, exclusive=queue.exclusive)
        self._takes: RankedTakes[JobAttempt] = RankedTakes(held, queue.runtime)
        self._turns = self._takes.turns
        # Fetchers ask one after the other: what the first has got counts for the next.
        self._one = asyncio.Lock()
        self._channels, self._ranked = held.source.channels, held.source.ranked
        # Each channel that is waited for beside those of the fetchers, and the one from which its jobs are taken.
        self._awaited = {**dict(zip(self._ranked, self._ranked, strict=True)), **held.source.tenants}
        # Channels that had more than was taken, or that were not asked yet; and those whose fetchers wait.
        self._rich = set(self._channels)
        self._idle: set[str] = set()
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._wake = Signal()
        self.flows: FlowFollower = flows(self._carried_on)
        self.versions: VersionRecall = VersionRecall(queue)
        self._outage = queue.outage()
        self._is_away = False
        self._surplus: list[JobAttempt] = []
        # When a channel brought jobs the last time, in seconds since boot.
        self._taken_in_at = float("-inf")
        self._ends_by_itself = settings.until_empty or settings.until_idle
        self._is_shared = len(self._channels) > 1
        self._served = ""
        # The channels that were empty, since a job was taken or ran.
        self._dry: set[str] = set()
        # The channels whose last pull was empty, and when that was.
        self._poor: dict[str, float] = {}
        self._look_s = _FIRST_LOOK_S
        self._is_ending = False

    def close(self) -> None:
        """Take no more jobs."""
        self._stopping = True
        self.changed.notify()

    async def fetch(self, channel: str) -> None:
        """Take jobs of a channel until closed."""
        # No job starts that is known to be cancelled or paused.
        await self.begun.wait(0)
        while not self._stopping:
            seen = self.changed.generation
            if self._served == channel and self._is_shared:
                # The other channel's turn: neither starves.
                await self._clock.sleep(0)
            wanted = self._count_wanted()
            if wanted <= 0:
                if self._settings.until_idle and (self._orders.is_all_paused or await self._is_over(channel)):
                    await self._end(seen)
                else:
                    await self.changed.wait(seen)
                continue
            if self._is_spared(channel):
                await self.changed.wait_at_most(self._clock, _SPARED_S, seen)
                continue
            asked = self._clock.boottime()
            found: list[JobAttempt] | None
            try:
                if self._ends_by_itself:
                    found = await self._now(channel)
                    if not found and await self._is_over(channel):
                        await self._end(seen)
                        continue
                else:
                    found = await self._take(channel, wanted)
            except PeltonError as error:
                self._is_away = True
                await self._outage.wait(error)
                continue
            self._note_answer()
            if found is not None:
                self._note(channel, asked, bool(found))
            if found:
                self._served = channel
                await self._take_in(found, asked)
            elif self._ends_by_itself and not self._stopping:
                # Until one of our jobs has ended, or some time has passed.
                pause, self._look_s = self._look_s, min(2 * self._look_s, _LONGEST_LOOK_S)
                await self.changed.wait_at_most(self._clock, pause, seen)

    # --- asking a channel, or those of jobs with a priority if it is their turn

    async def _now(self, channel: str) -> list[JobAttempt] | None:
        """Take jobs of a channel, or with a priority; none if there are none of both. None: none are wanted now."""
        async with self._one:
            wanted = self._count_wanted()
            return await self._takes.now(channel, wanted) if wanted > 0 else None

    async def _take(self, channel: str, wanted: int) -> list[JobAttempt]:
        """Take jobs of a channel, waiting for them, or those with a priority if it is their turn: maybe none."""
        await self._takes.look()
        if not self._turns.next(channel, wanted, self._clock.boottime()).waits:
            async with self._one:
                wanted = self._count_wanted()
                turn = self._turns.next(channel, wanted, self._clock.boottime())
                return [] if turn.waits or wanted <= 0 else await self._takes.ask(turn)
        if channel in self._rich:
            found = self._note_rest(channel, await self._held.take(channel, PullRequest(batch=wanted, no_wait=True)))
            if found:
                return found
        self._idle.add(channel)
        if len(self._pulls) < len(self._awaited):
            self._wake.notify()
        try:
            return self._note_rest(channel, await self._held.take(channel, self.appetite.request(wanted)))
        finally:
            self._idle.discard(channel)

    def _note_rest(self, channel: str, found: list[JobAttempt]) -> list[JobAttempt]:
        if found and found[-1].records.delivered.num_pending:
            self._rich.add(channel)
        else:
            self._rich.discard(channel)
        return found

    # --- while all of them wait

    async def fetch_ranked(self) -> None:
        """Fetch jobs with a priority while the other channels wait, for ever."""
        try:
            while True:
                seen = self._wake.generation
                self._check_pulls()
                if not (self._is_waiting and await self._ask(await self._room())):
                    await self._wake.wait(seen)
        finally:
            for pull in self._pulls.values():
                pull.cancel()
            await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    async def _room(self) -> int:
        """Wait until jobs are wanted, and return how many."""
        while (wanted := self._count_wanted()) <= 0:
            await self.changed.wait(self.changed.generation)
        return wanted

    @property
    def _is_waiting(self) -> bool:
        return len(self._idle) == len(self._channels)

    async def _ask(self, wanted: int) -> bool:
        """Ask the channel whose turn it is; if none can have any, wait for all, and return False."""
        turn = self._turns.next("", wanted, self._clock.boottime())
        if not turn.waits:
            await self._take_from(turn.channel, lambda: self._takes.ask(turn))
        elif self._is_waiting:
            self._wait_for_all(wanted)
        return not turn.waits

    def _wait_for_all(self, wanted: int) -> None:
        for name in self._awaited:
            if name not in self._pulls:
                if name in self._ranked:
                    self._turns.awaits(name)
                pull = self._runtime.spawn(self._wait_for(name, wanted), f"pelton waits for {name}")
                pull.add_done_callback(lambda _: self._wake.notify())
                self._pulls[name] = pull

    async def _wait_for(self, channel: str, wanted: int) -> None:
        async def take_some() -> list[JobAttempt]:
            found: list[JobAttempt] = []
            try:
                found = await self._held.take(channel, self.appetite.request(wanted))
            finally:
                if found or channel in self._ranked:
                    self._turns.note_answer(self._awaited[channel], len(found), self._clock.boottime())
            return found

        await self._take_from(channel, take_some)

    async def _take_from(self, channel: str, take: Callable[[], Awaitable[list[JobAttempt]]]) -> None:
        asked = self._clock.boottime()
        try:
            found = await take()
            if found:
                await self._take_in(found, asked)
        except FINAL_ERRORS:
            raise
        except PeltonError as error:
            # The fetchers of the other channels meet it, too, and end the worker if it can't pass.
            _log.debug("no jobs can be taken from %s: %s", channel, error)
            await self._clock.sleep(ASK_AGAIN_S)

    def _check_pulls(self) -> None:
        for name, pull in list(self._pulls.items()):
            if pull.done():
                del self._pulls[name]
                pull.result()

    def recall_versions(self) -> Coroutine[Any, Any, None]:
        """Recall jobs that others gave back for this version, for ever."""
        return self.versions.follow(self.changed, self._count_wanted)

    # --- its progress

    def _note_answer(self) -> None:
        if self._is_away:
            self._is_away = False
            self._outage.end()

    def _is_spared(self, channel: str) -> bool:
        """Whether to ask a channel later: it had nothing a moment ago, and asking costs a transaction."""
        if not self._ends_by_itself or len(self._poor) == len(self._channels):
            return False
        asked = self._poor.get(channel)
        return asked is not None and self._clock.boottime() - asked < _SPARED_S

    def _note(self, channel: str, asked: float, has_jobs: bool) -> None:
        """Note whether a channel had jobs; if none has any, all are to be asked again."""
        if has_jobs:
            self._poor.pop(channel, None)
            self._look_s = _FIRST_LOOK_S
            return
        is_new = channel not in self._poor
        self._poor[channel] = asked
        if is_new and self._is_shared and len(self._poor) == len(self._channels):
            self.changed.notify()

    def _count_wanted(self) -> int:
        waiting = len(self._waiting)
        return self._held.room(
            int(min(self.appetite.count_wanted(self._slots.active, waiting), self._may_begin())), waiting
        )

    async def _take_in(self, found: list[JobAttempt], asked: float) -> None:
        """Accept what fits, and hand the rest back: two channels may have been asked to fill the same slots."""
        self.taken += len(found)
        room = len(found)
        if self._taken_in_at >= asked:
            room = max(self.appetite.room(self._slots.active, len(self._waiting)), 0)
        if self._orders.is_all_paused:
            # They were asked for before the pause. On a cluster, a key whose retry is due is still taken by then.
            room = 0
        self._taken_in_at = self._clock.boottime()
        self._waiting.extend(found[:room])
        self._dry.clear()
        self._slots.wake()
        surplus = found[room:]
        if not surplus:
            return
        try:
            await self._held.hand_back(surplus)
        finally:
            # A stopping worker hands back the rest.
            self._surplus += [attempt for attempt in surplus if self._held.is_held(attempt)]

    def unpark(self, attempts: list[JobAttempt]) -> None:
        """Start jobs that have waited for a limit, before those that were taken after them."""
        self._waiting.extendleft(reversed(attempts))
        self._slots.wake()
        # There may be room for others.
        self.changed.notify()

    async def hand_back_waiting(self) -> None:
        """Give back all jobs that were taken and not started."""
        waiting = [*self._waiting, *self._surplus, *self._parking.clear()]
        self._waiting.clear()
        self._surplus.clear()
        with suppress(PeltonError):
            await self._held.hand_back(waiting)

    async def _end(self, seen: int) -> None:
        """Let the worker end, unless ``on_idle`` says that it is to look again."""
        if (on_idle := self._settings.on_idle) is None:
            self._stop()
        elif self._is_ending or self._is_busy:
            await self.changed.wait(seen)
        else:
            self._is_ending = True
            try:
                starts_in = await self._starts_in()
                # Something may have come meanwhile.
                if self._is_busy:
                    pass
                elif self._batches.gathered:
                    self._batches.run_gathered()
                elif not on_idle(starts_in):
                    self._stop()
            finally:
                self._is_ending = False
                self._dry.clear()
                self.changed.notify()

    async def _starts_in(self) -> float:
        """Return in how many seconds a job may start that was taken already, or put off; infinity: not known."""
        found = min(self._parking.starts_in(), self._held.admission.room_in())
        if found > self._lease / 3 and self._parking.parked_jobs():
            # Nobody keeps their leases when a clock jumps over their ends.
            await self.hand_back_waiting()
        now = self._clock.now()
        due = [taken.due for taken in (await self._stats.underway()).values() if taken.waits and taken.due > now]
        return min([found, *((at - now) / 1e9 for at in due)])

    @property
    def _is_busy(self) -> bool:
        running = len(self._slots.running)
        if running and self._settings.on_idle is not None:
            running -= self._batches.gathered
        return bool(
            running
            or self._waiting
            or self._held.admission.is_writing
            or self.versions.waiting
            or self.versions.is_recalling
        )

    async def _is_over(self, channel: str) -> bool:
        if ready := self._parking.ready():
            # Something was returned to a limit.
            self.unpark(ready)
        if self._is_busy:
            # What ends may let another job start.
            self._dry.clear()
            return False
        self._dry.add(channel)
        if self._settings.until_idle and len(self._dry) == len(self._channels):
            # It may have enqueued jobs meanwhile.
            return await self.flows.is_idle() and len(self._dry) == len(self._channels)
        if not self._settings.until_empty or (quiet := await self.flows.quiet()) is None:
            return False
        return await self._job_source.is_empty() and quiet == await self.flows.quiet()

    def _carried_on(self) -> None:
        """Take note that a flow went on: it may have enqueued jobs."""
        self._dry.clear()
        self.changed.notify()
