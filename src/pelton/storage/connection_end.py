"""The fault that ended a connection for good, and the callback for it."""

from __future__ import annotations

from collections.abc import Callable

from pelton.storage.faults import FINAL_FAULTS, Fault, fault_of


class ConnectionEnd:
    """Records the fault that ended one connection to the store ``path``, if any; from any thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._told: Callable[[Fault], None] | None = None
        self.fault: Fault | None = None

    def tell(self, told: Callable[[Fault], None]) -> None:
        """Call ``told`` once, when the connection ends, or now if it has ended."""
        self._told = told
        if self.fault is not None:
            told(self.fault)

    def end(self, fault: Fault) -> None:
        """Record that the connection has ended. A second fault replaces the first without another call."""
        is_first, self.fault = self.fault is None, fault
        if is_first and self._told is not None:
            self._told(fault)

    def met(self, error: Exception) -> Fault:
        """Return an exception as a fault; if it is final, record that the connection has ended."""
        fault = error if isinstance(error, Fault) else fault_of(error, self._path)
        if fault.kind in FINAL_FAULTS:
            self.end(fault)
        return fault
