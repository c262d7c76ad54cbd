"""Group commit: everything that waits shares one transaction, and one sync to disk; and whose turn it is to write.

Design: callers *stage* work. At the end of the event loop's current round all staged work runs inside one
``BEGIN IMMEDIATE``; then the transaction commits, other processes may write, and the log is synced. Work that
must be durable is finished only after a sync that began after its commit; other work (a delivery, which may
be repeated after a power loss) is finished at once. While a sync runs on its thread the next group is built
and committed: syncs never overlap, and one sync covers all commits before it.

Invariants:
- Work is finished or failed exactly once, in the order of staging within a group.
- Work raises before it changes anything, or the whole group is rolled back and each piece runs again alone: no failing
  operation makes its neighbours fail. So work keeps no effect of ``run`` outside the transaction.
- After a failed sync nothing more is acknowledged (the kernel may have dropped the pages) until it is opened again.

A small group is synced on the loop's own thread: a hop to another thread costs as much as a fast disk's sync.
A large group, or a slow disk, is synced on the other thread. With too few CPUs a sync also takes long, because its
thread waits for one; that time is not the disk's and does not count: on another thread all would wait twice.

**SQLite's write lock: whose turn it is among all openers of a store, and how one waits.**
SQLite's lock has no queue, so a connection tries again and again. Each try costs CPU and seldom comes at the right
moment, so the pauses grow; a commit of another process ends a pause early. Whoever has waited for
:data:`PRIORITY_AFTER_S` waits with priority. Of those, the one whose turn is next tries often; the others stand back.

**Claims.** SQLite's lock goes to whoever tries at the right moment. A process that takes it again and again can keep
another from it for seconds: the other only ever tries while the lock is held. For two threads of one process that is
the rule, because Python switches to the other thread mostly while SQLite runs, which is within a transaction.

So a connection that has waited for long *claims* the next turn, and all others stand back until it has had it. One
claim is kept, that of the longest wait. The claimant repeats it with each try; a claim that was not repeated for
:data:`LAPSE_S` no longer counts, so a claimant that was stopped or killed delays the others by that and no longer.

A claim is a courtesy. SQLite's own lock alone keeps transactions apart: two that claim in the same moment, a
half-written claim, or an older Pelton that knows nothing of claims, cost some milliseconds. The times are seconds of
the monotonic clock of the machine; a claim from a container with another clock is not a recent one, and is ignored.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Final, Literal, Protocol
from weakref import WeakValueDictionary

import apsw

from pelton.runtime import cpu_wait, pause, stopwatch
from pelton.storage.database import Database
from pelton.storage.faults import FAILURES, Fault
from pelton.storage.troubles import LONG_WAIT_S, SLOW_SYNC_S

FIRST_PAUSE_S: Final = 0.001
LONGEST_PAUSE_S: Final = 0.004
PRIORITY_AFTER_S: Final = 0.004


class WriterWait:
    """One wait after the other; ``patience`` (seconds) is the longest, ``since`` when the present one began."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._pause = FIRST_PAUSE_S
        self.since: float | None = None

    def note_miss(self, now: float, *, is_next: bool) -> float:
        """Note that the lock was not free; return how many seconds to pause. ``is_next``: nobody else had a try."""
        if self.since is None:
            self.since = now
        if self.has_priority(now):
            return FIRST_PAUSE_S if is_next else LONGEST_PAUSE_S
        current, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
        return current

    def has_priority(self, now: float) -> bool:
        """Whether this wait is long enough for others to stand back."""
        return self.since is not None and now - self.since >= PRIORITY_AFTER_S

    def is_over(self, now: float) -> bool:
        """Whether it has taken longer than anyone should wait."""
        return self.since is not None and now - self.since > self._patience

    def end(self) -> None:
        """Begin anew: the lock was taken, or is no longer wanted."""
        self.since, self._pause = None, FIRST_PAUSE_S


LAPSE_S: Final = 0.02
_FORM: Final = struct.Struct("=Qdd")
SIZE: Final = _FORM.size
_NOBODY: Final = bytes(SIZE)
_number: Final = count(1)


class WriterPriority:
    """The view of one connection; ``memory`` holds the claim from ``place`` on, zeros for none."""

    def __init__(self, memory: mmap.mmap | bytearray, place: int) -> None:
        self._memory = memory
        self._place = place
        self._own = os.getpid() << 32 | next(_number) & 0xFFFFFFFF

    def is_anothers(self, now: float) -> bool:
        """Whether to stand back: another has claimed the next turn."""
        if self._memory[self._place : self._place + SIZE] == _NOBODY:
            return False
        who, _, repeated = self._read_claim()
        return who != self._own and _is_recent(repeated, now)

    def claim(self, since: float, now: float) -> bool:
        """Claim the next turn, having waited ``since`` then; return False if another has waited for longer."""
        who, others, repeated = self._read_claim()
        if who not in (0, self._own) and _is_recent(repeated, now) and (others, who) < (since, self._own):
            return False
        _FORM.pack_into(self._memory, self._place, self._own, since, now)
        return True

    def withdraw(self) -> None:
        if self._read_claim()[0] == self._own:
            self._memory[self._place : self._place + SIZE] = _NOBODY

    def _read_claim(self) -> tuple[int, float, float]:
        found: tuple[int, float, float] = _FORM.unpack_from(self._memory, self._place)
        return found


class _Claims(bytearray):
    """The claim on a memory store."""


_claims: Final[WeakValueDictionary[str, _Claims]] = WeakValueDictionary()
_guard: Final = threading.Lock()


def claims_in_memory(name: str) -> bytearray:
    """Return the claim on a memory store, which all its connections in this process share."""
    with _guard:
        return _claims.setdefault(name, _Claims(SIZE))


def _is_recent(repeated: float, now: float) -> bool:
    return abs(now - repeated) <= LAPSE_S


class WriteLock:
    """Opens the write transactions of one connection; ``busy_timeout`` (seconds) is the longest wait for others."""

    def __init__(self, database: Database, busy_timeout: float) -> None:
        self._db = database
        self._busy_timeout = busy_timeout
        self._wait = WriterWait(busy_timeout)
        claims = database.claims
        self._priority = WriterPriority(*(claims if claims is not None else (claims_in_memory(database.path), 0)))
        self._has_claimed = False

    def begin(self, now: float) -> float | None:
        """Open a transaction and return None, or return how many seconds to pause before the next try.

        ``now`` is the monotonic clock's. Raises Fault, of kind ``busy`` when the wait has taken too long.
        """
        is_next = not self._priority.is_anothers(now) if self._wait.since is None else self._is_our_turn(now)
        if is_next:
            try:
                self._db.run("BEGIN IMMEDIATE")
            except apsw.BusyError:
                pass
            except apsw.Error as error:
                self.give_up()
                raise self._db.ending.met(error) from error
            else:
                if self._wait.since is not None:
                    self._note(now)
                    self.give_up()
                return None
        if self._wait.is_over(now):
            self._note(now)
            self.give_up()
            detail = (
                f"another process has held the write lock for {self._busy_timeout:g} s; if it is stopped or hangs, "
                "let it go on or end it, then retry"
            )
            raise Fault("busy", self._db.path, detail)
        return self._wait.note_miss(now, is_next=is_next)

    def is_anothers(self, now: float) -> bool:
        """Whether a try would be in vain: another connection has claimed the next turn."""
        return self._priority.is_anothers(now)

    def give_up(self) -> None:
        self._wait.end()
        if self._has_claimed:
            self._has_claimed = False
            self._priority.withdraw()

    def _note(self, now: float) -> None:
        since = self._wait.since
        if since is not None and now - since >= LONG_WAIT_S:
            self._db.troubles.writer_took(now - since)

    def _is_our_turn(self, now: float) -> bool:
        since = self._wait.since
        if since is None or not self._wait.has_priority(now):
            return not self._priority.is_anothers(now)
        self._has_claimed = True
        return self._priority.claim(since, now)


SyncMode = Literal["commit", "interval", "off"]

_SMALL_GROUP: Final = 12
_SLOW_SYNC_S: Final = 0.002
_SUSPECT_S: Final = 0.0005
SPIN_S: Final = 0.00005
_ALONE_S: Final = 0.0005


class Work(Protocol):
    """A piece of work inside a transaction."""

    @property
    def durable(self) -> bool:
        """Whether the result may be returned only once it is on disk."""

    @property
    def size(self) -> int:
        """The number of callers that wait for it."""

    def run(self) -> None:
        """Do the work inside the open transaction; raise before changing anything."""

    def finish(self) -> None:
        """Return the result to callers: the transaction is committed (and synced, if ``durable``)."""

    def fail(self, error: Exception) -> None:
        """Raise an error to callers: nothing was changed."""

    def pieces(self) -> list[Work]:
        """Return the parts that can run alone; ``[self]`` if it cannot be split."""


class Participant(Protocol):
    """Keeps state in memory beside the rows, and is therefore called for every transaction."""

    def began(self) -> None: ...
    def flush(self) -> None: ...

    def take_effects(self) -> Any:
        """Return the effects of the transaction, which is committed now."""

    def roll_back(self) -> None:
        """Handle a rollback, or staged work that failed before it could run."""


class Committer:
    """Runs staged work in shared transactions on one database; belongs to one event loop.

    ``busy_timeout`` (seconds) bounds the wait for other processes' transactions; ``interval`` (seconds) is the time
    between syncs in mode ``interval``, and in mode ``off`` the time between checks that the file still exists.
    ``publish`` is called with the effects of each transaction, ``undone`` after a rollback.
    """

    rounds: int

    def __init__(
        self,
        database: Database,
        participant: Participant,
        *,
        mode: SyncMode,
        interval: float,
        busy_timeout: float,
        publish: Callable[[Any], None],
        undone: Callable[[], None],
    ) -> None:
        self._db = database
        self._participant = participant
        self._publish = publish
        self._undone = undone
        self._wal = database.log
        self._mode: SyncMode = "off" if self._wal is None else mode
        self._interval = interval
        self._busy_timeout = busy_timeout
        self._loop = asyncio.get_running_loop()
        self.staged: list[Work] = []
        # How often staged work was begun, or has failed: nothing more can join it.
        self.rounds = 0
        self._scheduled = False
        # Set while another process has the writer.
        self._retry: asyncio.TimerHandle | None = None
        self._lock = WriteLock(database, busy_timeout)
        self._held = False
        # What ran at once in this round of the loop, for which task, and since when.
        self._ran_now: set[bool] = set()
        self._runner: asyncio.Task[Any] | None = None
        self._round_began = 0.0
        self._unsynced: list[Work] = []
        self._syncing = False
        self._sync_cost = 0.0
        self._thread: ThreadPoolExecutor | None = None
        self._interval_timer: asyncio.TimerHandle | None = None
        self._idle: list[Callable[[], None]] = []

    def stage(self, work: Work) -> None:
        """Run ``work`` in the transaction that opens at the end of this round of the loop."""
        self._db.check()
        self.staged.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def run_now(self, work: Work) -> bool:
        """Run ``work`` at once if nothing waits before it, else stage it; return whether it was run.

        It saves a single caller a round of the loop. Each round runs at most one durable and one other work this way,
        as many callers should share a transaction; or several of one task, but for no longer than
        :data:`_ALONE_S`: a caller that never waits would let no other task run.
        """
        if (
            self._syncing
            or self._scheduled
            or self.staged
            or self._held
            or self._sync_cost > _SLOW_SYNC_S
            or (work.durable in self._ran_now and not self._runs_on())
        ):
            self.stage(work)
            return False
        self._db.check()
        if not self._ran_now:
            self._loop.call_soon(self._end_round)
            self._runner, self._round_began = asyncio.current_task(), stopwatch()
        self._ran_now.add(work.durable)
        self.staged.append(work)
        self._begin()
        return work not in self.staged

    def _runs_on(self) -> bool:
        """Whether the task whose work ran at once in this round asks again, and has not kept the others for long."""
        is_early = stopwatch() - self._round_began < _ALONE_S
        return is_early and self._runner is not None and asyncio.current_task() is self._runner

    def _end_round(self) -> None:
        self._ran_now.clear()
        self._runner = None

    def woken(self) -> None:
        """Retry now: another process has committed, so the writer may be free before the retry timer fires."""
        if self._retry is not None and not self._lock.is_anothers(self._loop.time()):
            self._drain()

    def hold(self) -> None:
        """Run nothing until :meth:`let_go`: another connection of this process has the writer."""
        self._held = True
        self._lock.give_up()

    def let_go(self, *committed: Work) -> None:
        """Run the work staged since :meth:`hold`, and finish what the other connection ``committed``, in one sync."""
        self._held = False
        self._settle(committed)
        self._drain()
        self._after_commit()

    def prepare_commit(self, used: int) -> None:
        """Reserve space in the log, ``used`` bytes long so far, for a commit of the connection that has the writer."""
        if self._wal is not None and self._mode == "commit":
            self._wal.reserve(used)

    async def quiesce(self) -> None:
        """Wait until all staged work is finished, and synced as the mode requires."""
        while self.staged or self._unsynced or self._syncing:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(lambda w=waiter: w.done() or w.set_result(None))  # type: ignore[misc]  # a default argument
            await waiter
        if self._interval_timer is not None:
            self._interval_timer.cancel()
            self._sync_interval()

    def close(self) -> None:
        self._lock.give_up()
        if self._interval_timer is not None:
            self._interval_timer.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _drain(self) -> None:
        self._scheduled = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if not self.staged or self._held:
            return
        try:
            self._db.check()
        except Fault as fault:
            self._fail_all(fault)
        else:
            self._begin()

    def _begin(self) -> None:
        try:
            wait = self._lock.begin(self._loop.time())
        except Fault as fault:
            self._fail_all(fault)
            return
        if wait is not None:
            self._scheduled = True
            self._retry = self._loop.call_later(wait, self._drain)
            return
        self._run_group(self._take_staged())
        self._after_commit()

    def _take_staged(self) -> list[Work]:
        works, self.staged = self.staged, []
        self.rounds += 1
        return works

    def _fail_all(self, error: Exception) -> None:
        works = self._take_staged()
        self._lock.give_up()
        self._participant.roll_back()
        self._undone()
        for work in works:
            work.fail(error)
        self._tell_idle()

    def _run_group(self, works: list[Work]) -> None:
        """Run one open transaction to its end; on an error, run each piece again alone."""
        try:
            self._participant.began()
            for work in works:
                work.run()
            self._participant.flush()
            self._commit()
        except Exception as error:  # on any error, the group is rolled back and every caller gets an answer
            self._roll_back()
            self._run_alone(works, error)
            return
        except BaseException:  # Ctrl-C in the middle: no open transaction may stay behind
            self._roll_back()
            for work in works:
                work.fail(Fault("io", self._db.path, "interrupted; whether it was stored is not known"))
            raise
        try:
            self._publish(self._participant.take_effects())
        except Exception as error:  # the rows are stored, but memory may not match them: nothing more may rest on it
            self._end(works, error)
            return
        self._settle(works)

    def _end(self, works: list[Work], error: Exception) -> None:
        """End the connection: what follows a commit has failed."""
        text = f"following up a commit failed ({error!r}); whether it was stored is not known: open the store again"
        fault = Fault("failed", self._db.path, text)
        self._report("what follows a commit failed; the store must be opened again", error)
        self._db.ending.end(fault)
        for work in works:
            work.fail(fault)

    def _finish(self, works: Sequence[Work]) -> None:
        """Return their results to callers. A callback that raises is reported, and keeps nobody from their answers."""
        for work in works:
            try:
                work.finish()
            except Exception as error:  # a caller's mistake is no other caller's
                self._report("an answer to a caller failed", error)

    def _report(self, message: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": f"{self._db.path}: {message}", "exception": error})

    def _commit(self) -> None:
        if self._mode == "commit":
            self.prepare_commit(self._db.log_bytes)
        while True:
            try:
                self._db.run("COMMIT")
                return
            except apsw.BusyError:
                # Only possible for a memory store: another thread of this process is reading it.
                pause(SPIN_S)
            except apsw.Error as error:
                self._db.note(error)
                raise

    def _roll_back(self) -> None:
        if self._db.connection.in_transaction:
            self._db.run("ROLLBACK")
        self._participant.roll_back()
        self._undone()

    def _run_alone(self, works: list[Work], error: Exception) -> None:
        pieces = [piece for work in works for piece in work.pieces()]
        if len(pieces) == 1:
            shown = self._db.ending.met(error) if isinstance(error, (*FAILURES, Fault)) else error
            pieces[0].fail(shown)
            return
        deadline = self._loop.time() + self._busy_timeout
        for piece in pieces:
            try:
                self._db.check()
                self._begin_again(deadline)
            except Fault as fault:
                piece.fail(fault)
                continue
            self._run_group([piece])

    def _begin_again(self, deadline: float) -> None:
        while True:
            try:
                self._db.run("BEGIN IMMEDIATE")
                return
            except apsw.Error as error:
                if not isinstance(error, apsw.BusyError) or self._loop.time() > deadline:
                    raise self._db.ending.met(error) from error
                pause(SPIN_S)

    def _settle(self, works: Sequence[Work]) -> None:
        if self._mode == "commit":
            ended: list[Work] = []
            for work in works:
                (self._unsynced if work.durable else ended).append(work)
            self._finish(ended)
            return
        self._finish(works)
        if self._wal is not None and self._interval_timer is None:
            self._interval_timer = self._loop.call_later(self._interval, self._sync_interval)

    def _after_commit(self) -> None:
        if self._unsynced and not self._syncing:
            self._sync()
        if self._idle:
            self._tell_idle()

    def _sync(self) -> None:
        works, self._unsynced = self._unsynced, []
        assert self._wal is not None
        if self._sync_cost < _SLOW_SYNC_S and sum(work.size for work in works) <= _SMALL_GROUP:
            try:
                self._timed_sync()
            except Fault as fault:
                self._sync_failed(works, fault)
            else:
                self._finish(works)
            return
        self._syncing = True
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pelton-sync")
        future = self._loop.run_in_executor(self._thread, self._timed_sync)
        future.add_done_callback(lambda done: self._on_synced(works, done))

    def _timed_sync(self) -> None:
        assert self._wal is not None
        # Measuring this costs a tenth of a fast sync.
        is_suspect = self._sync_cost > _SUSPECT_S
        waited = cpu_wait() if is_suspect else 0.0
        start = stopwatch()
        try:
            self._wal.sync()
        finally:
            # If the log is gone, report that as the reason instead.
            self._db.check_place()
        cost = max(0.0, stopwatch() - start - (cpu_wait() - waited if is_suspect else 0.0))
        self._sync_cost += 0.1 * (cost - self._sync_cost)
        if cost >= SLOW_SYNC_S:
            self._db.troubles.sync_took(cost)

    def _on_synced(self, works: list[Work], done: asyncio.Future[None]) -> None:
        self._syncing = False
        if (error := done.exception()) is not None:
            self._sync_failed(works, error)
            return
        self._finish(works)
        self._after_commit()

    def _sync_failed(self, works: list[Work], error: BaseException) -> None:
        text = f"syncing the log failed ({error!r})"
        fault = error if isinstance(error, Fault) else Fault("failed", self._db.path, text)
        self._db.ending.end(fault)
        for work in [*works, *self._unsynced]:
            work.fail(fault)
        self._unsynced = []
        self._fail_all(fault)

    def _sync_interval(self) -> None:
        self._interval_timer = None
        try:
            if self._mode == "interval":
                self._timed_sync()
            else:
                self._db.check_place()
        except Fault as fault:
            self._sync_failed([], fault)

    def _tell_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for tell in waiting:
            tell()
