"""The kit for testing programs that use Pelton, and Pelton itself."""

from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime
from pelton.testing.faults import FaultySync
from pelton.testing.power import RecordingDisk
from pelton.testing.recount import recount

__all__ = ["FaultySync", "ManualClock", "ManualRuntime", "RecordingDisk", "manual_runtime", "recount"]
