"""An event loop whose time, order and threads come from a seed.

Design: callbacks belong to *lanes*. A lane is one thread of a simulated process: what is scheduled in its context goes
on in it, in the order in which it was scheduled, as on an event loop of its own. Which lane goes on next is drawn. Time
stands still while a callback runs, moves by some microseconds between two rounds, and jumps to the next timer when no
lane has anything to do. So an hour without work costs nothing, and equal seeds give equal runs.

A lane that is held (its process is stopped) keeps what it has to do, timers included; one that is dead drops it,
without a cancellation: none of its ``finally`` blocks run, as in a killed process.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# How long a round of a lane takes at most, in seconds.
_ROUND_S: Final = 40e-6
_MANY_CANCELLED: Final = 1000
# A coroutine may go on some times while it is closed.
_CLOSINGS: Final = 30


class StandsStill(Exception):  # noqa: N818  # of a simulation, not of the code
    """Nothing will ever happen any more."""


class Lane:
    """A thread of a simulated process, called ``name``."""

    __slots__ = ("is_dead", "is_held", "name", "owner", "ready", "tasks")

    def __init__(self, name: str, owner: Any = None) -> None:
        self.name = name
        self.owner = owner
        self.ready: deque[asyncio.Handle] = deque()
        self.is_held = False
        self.is_dead = False
        # Held on to: a task that is forgotten runs its ``finally`` blocks.
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def context(self) -> Context:
        """Return a context in which what is scheduled goes on in this lane."""
        context = copy_context()
        context.run(LANE.set, self)
        return context


_NOBODY: Final = Lane("nobody")
LANE: Final[ContextVar[Lane]] = ContextVar("the lane of what runs now", default=_NOBODY)
_ANYWHERE: Final = Context()


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs the lanes of a simulation."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = Random(seed)
        self._seconds = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Lane]] = []
        self._order = count()
        self._cancelled = 0
        self.director = Lane("director")
        self.lanes: list[Lane] = [self.director]
        self.steps = 0
        self.errors: list[str] = []
        self._is_over = False
        self.set_exception_handler(self._note_error)

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    # --- time

    def time(self) -> float:
        """Return the simulated seconds."""
        return self._seconds

    def block(self, seconds: float) -> None:
        """Let time pass while a callback runs: it blocks its thread."""
        self._seconds += seconds

    # --- what is scheduled

    def lane(self, name: str, owner: Any = None) -> Lane:
        """Return a new lane."""
        lane = Lane(name, owner)
        self.lanes.append(lane)
        return lane

    def spawn(self, lane: Lane, coro: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run a coroutine in a lane."""
        return self.create_task(coro, name=name or lane.name, context=lane.context())

    def _lane_of(self, context: Context | None) -> Lane:
        lane = LANE.get() if context is None else context.get(LANE, _NOBODY)
        return self.director if lane is _NOBODY else lane

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback in the lane of its context."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_over:
            self._lane_of(context).ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a time, in the lane of its context."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer, self._lane_of(context)))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback some seconds later."""
        return self.call_at(self._seconds + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > _MANY_CANCELLED:
            self._cancelled = 0
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: object = None, context: Any = None
    ) -> asyncio.Task[T]:
        """Run a coroutine in the lane of its context."""
        task = super().create_task(coro, name=None if name is None else str(name), context=context)
        lane = self._lane_of(context)
        lane.tasks[task] = None
        task.add_done_callback(lane.tasks.pop, context=_ANYWHERE)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run a function on another thread of the process: at once, and return its result a little later."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.done():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_soon(run)
        return future

    # --- one round

    def _run_once(self) -> None:
        self._take_due()
        lanes = [lane for lane in self.lanes if lane.ready and not lane.is_held]
        if not lanes:
            self._jump()
            return
        lane = lanes[0] if len(lanes) == 1 else lanes[int(self._chance.random() * len(lanes))]
        self._seconds += self._chance.random() * _ROUND_S
        ready = lane.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self.steps += 1
                handle._run()
                if lane.is_held or lane.is_dead:
                    return

    def _take_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._seconds:
            _, _, timer, lane = heapq.heappop(timers)
            if not timer._cancelled and not lane.is_dead:
                lane.ready.append(timer)

    def _jump(self) -> None:
        timers = self._timers
        while timers and (timers[0][2]._cancelled or timers[0][3].is_dead):
            heapq.heappop(timers)
        if not timers:
            raise StandsStill
        self._seconds = max(self._seconds, timers[0][0])

    # --- the end

    def kill(self, lane: Lane) -> None:
        """Let a lane never go on: it does not even notice."""
        lane.is_dead = lane.is_held = True
        lane.ready.clear()
        if lane in self.lanes:
            self.lanes.remove(lane)

    def forget(self, lanes: Sequence[Lane]) -> None:
        """Let go of what dead lanes would have done, when all is over: nothing that they do is seen any more."""
        self._is_over = True
        with _silenced():
            for task in [task for lane in lanes for task in lane.tasks]:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # so asyncio does for its own
                for _ in range(_CLOSINGS):
                    with suppress(BaseException):
                        task.get_coro().close()
                        break
            for lane in lanes:
                lane.tasks.clear()
            self.director.ready.clear()
            self._timers.clear()
            gc.collect()

    # --- what the base class asks for

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no threads."""


@contextmanager
def _silenced() -> Iterator[None]:
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
