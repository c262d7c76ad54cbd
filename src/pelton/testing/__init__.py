"""The kit for testing programs that use Pelton, and Pelton itself."""

from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime
from pelton.testing.recount import recount

__all__ = ["ManualClock", "ManualRuntime", "manual_runtime", "recount"]
