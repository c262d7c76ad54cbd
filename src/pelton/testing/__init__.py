"""Tools for testing programs that use Pelton, and Pelton itself."""

from pelton.testing.clock import ManualClock, ManualRuntime, manual_runtime
from pelton.testing.drain import drain, inline

__all__ = [
    "ManualClock",
    "ManualRuntime",
    "drain",
    "inline",
    "manual_runtime",
]
