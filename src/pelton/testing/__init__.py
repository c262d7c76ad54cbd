"""Tools for testing programs that use Pelton, and Pelton itself."""

from pelton.engine.maintenance.recount import recount
from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime
from pelton.testing.drain import drain, inline
from pelton.testing.faults import FaultySync, FullDisk
from pelton.testing.fencing import FencedRegister
from pelton.testing.hazards import HazardBackend, Hazards, SimulatedClient, World
from pelton.testing.power import RecordingDisk

__all__ = [
    "FaultySync",
    "FencedRegister",
    "FullDisk",
    "HazardBackend",
    "Hazards",
    "ManualClock",
    "ManualRuntime",
    "RecordingDisk",
    "SimulatedClient",
    "World",
    "drain",
    "inline",
    "manual_runtime",
    "recount",
]
