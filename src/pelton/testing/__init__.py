"""The kit for testing programs that use Pelton, and Pelton itself."""

from pelton.engine.recount import recount
from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime
from pelton.testing.faults import FaultySync
from pelton.testing.power import RecordingDisk

__all__ = ["FaultySync", "ManualClock", "ManualRuntime", "RecordingDisk", "manual_runtime", "recount"]
