"""The outside world, injected: time, randomness, ids and background tasks.

Decisions elsewhere in Pelton are functions of their arguments. What a program normally takes from globals
(the clock, a random number, a new id, a task) comes from one `Runtime` passed down at construction, so a test
can pass one whose clock moves only on demand. This is the only package that may use `time`, `random` or
`secrets`.
"""

from random import Random

from pelton.runtime.clock import (
    Clock,
    Deadline,
    LeaseClock,
    LeaseShares,
    Signal,
    SystemClock,
    Timer,
    WallOffset,
    boot_id,
    interruptible,
    pause,
    steady_now,
    stopwatch,
    wall_ahead,
    within,
)
from pelton.runtime.loop_thread import (
    Caller,
    Home,
    LoopThread,
    Standstill,
    at_home,
    calls_for,
    owner,
    running_loop,
    this_thread,
)
from pelton.runtime.processes import (
    LOOK_S,
    ProcessIdentity,
    ProcessWatch,
    StopSignals,
    cpu_seconds,
    cpu_wait,
    is_interrupt,
    memory_bytes,
)
from pelton.runtime.rank_bypass import BYPASS, RankBypass
from pelton.runtime.runtime import (
    Halt,
    Ids,
    Runtime,
    Service,
    ServiceState,
    Tasks,
    on_thread,
    system_runtime,
    until_ended,
)

__all__ = [
    "BYPASS",
    "LOOK_S",
    "Caller",
    "Clock",
    "Deadline",
    "Halt",
    "Home",
    "Ids",
    "LeaseClock",
    "LeaseShares",
    "LoopThread",
    "ProcessIdentity",
    "ProcessWatch",
    "Random",
    "RankBypass",
    "Runtime",
    "Service",
    "ServiceState",
    "Signal",
    "Standstill",
    "StopSignals",
    "SystemClock",
    "Tasks",
    "Timer",
    "WallOffset",
    "at_home",
    "boot_id",
    "calls_for",
    "cpu_seconds",
    "cpu_wait",
    "interruptible",
    "is_interrupt",
    "memory_bytes",
    "on_thread",
    "owner",
    "pause",
    "running_loop",
    "steady_now",
    "stopwatch",
    "system_runtime",
    "this_thread",
    "until_ended",
    "wall_ahead",
    "within",
]
