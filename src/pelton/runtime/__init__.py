"""The outside world, injected: time, randomness, ids and background tasks.

Decisions elsewhere in Pelton are functions of their arguments. What a program normally takes from globals
(the clock, a random number, a new id, a task) comes from one `Runtime` passed down at construction, so a test
can pass one whose clock moves only on demand. This is the only package that may use `time`, `random` or
`secrets`.
"""

from random import Random as Random

from pelton.runtime.clock import Clock as Clock
from pelton.runtime.clock import Deadline as Deadline
from pelton.runtime.clock import LeaseClock as LeaseClock
from pelton.runtime.clock import LeaseShares as LeaseShares
from pelton.runtime.clock import Signal as Signal
from pelton.runtime.clock import SystemClock as SystemClock
from pelton.runtime.clock import Timer as Timer
from pelton.runtime.clock import WallOffset as WallOffset
from pelton.runtime.clock import boot_id as boot_id
from pelton.runtime.clock import cpu_wait as cpu_wait
from pelton.runtime.clock import interruptible as interruptible
from pelton.runtime.clock import pause as pause
from pelton.runtime.clock import steady_now as steady_now
from pelton.runtime.clock import stopwatch as stopwatch
from pelton.runtime.clock import wall_ahead as wall_ahead
from pelton.runtime.clock import within as within
from pelton.runtime.loop_thread import Caller as Caller
from pelton.runtime.loop_thread import Home as Home
from pelton.runtime.loop_thread import LoopThread as LoopThread
from pelton.runtime.loop_thread import Standstill as Standstill
from pelton.runtime.loop_thread import at_home as at_home
from pelton.runtime.loop_thread import calls_for as calls_for
from pelton.runtime.loop_thread import owner as owner
from pelton.runtime.loop_thread import running_loop as running_loop
from pelton.runtime.loop_thread import this_thread as this_thread
from pelton.runtime.processes import LOOK_S as LOOK_S
from pelton.runtime.processes import ProcessIdentity as ProcessIdentity
from pelton.runtime.processes import ProcessWatch as ProcessWatch
from pelton.runtime.processes import StopSignals as StopSignals
from pelton.runtime.processes import cpu_seconds as cpu_seconds
from pelton.runtime.processes import is_interrupt as is_interrupt
from pelton.runtime.processes import memory_bytes as memory_bytes
from pelton.runtime.rank_bypass import BYPASS as BYPASS
from pelton.runtime.rank_bypass import RankBypass as RankBypass
from pelton.runtime.runtime import Halt as Halt
from pelton.runtime.runtime import Ids as Ids
from pelton.runtime.runtime import Runtime as Runtime
from pelton.runtime.runtime import Service as Service
from pelton.runtime.runtime import ServiceState as ServiceState
from pelton.runtime.runtime import Tasks as Tasks
from pelton.runtime.runtime import end_tasks as end_tasks
from pelton.runtime.runtime import on_thread as on_thread
from pelton.runtime.runtime import system_runtime as system_runtime
from pelton.runtime.runtime import until_ended as until_ended
