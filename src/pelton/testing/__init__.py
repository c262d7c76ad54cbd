"""The kit for testing programs that use Pelton, and Pelton itself."""

from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime
from pelton.testing.faults import FaultySync
from pelton.testing.recount import recount

__all__ = ["FaultySync", "ManualClock", "ManualRuntime", "manual_runtime", "recount"]
