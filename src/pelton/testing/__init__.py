"""Tools for testing programs that use Pelton, and Pelton itself."""

from pelton.testing.clock import ManualClock as ManualClock
from pelton.testing.clock import ManualRuntime as ManualRuntime
from pelton.testing.clock import manual_runtime as manual_runtime
from pelton.testing.drain import Replay as Replay
from pelton.testing.drain import drain as drain
from pelton.testing.drain import inline as inline
from pelton.testing.drain import replay as replay
