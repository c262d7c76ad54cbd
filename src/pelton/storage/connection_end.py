"""The end of a connection that can never be used again, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from pelton.storage.faults import FINAL_FAULTS, Fault, fault_of


class ConnectionEnd:
    """What has ended one connection to the store ``path``, if anything has; from any thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._told: Callable[[Fault], None] | None = None
        self.fault: Fault | None = None

    def tell(self, told: Callable[[Fault], None]) -> None:
        """Call ``told``, once, when it has ended; at once if it has."""
        self._told = told
        if self.fault is not None:
            told(self.fault)

    def end(self, fault: Fault) -> None:
        """Note that it has ended. A second reason replaces the first, and nobody is told again."""
        is_first, self.fault = self.fault is None, fault
        if is_first and self._told is not None:
            self._told(fault)

    def met(self, error: apsw.Error | OSError | Fault) -> Fault:
        """Return the fault that an exception stands for; if nothing can bring the connection back, it has ended."""
        fault = error if isinstance(error, Fault) else fault_of(error, self._path)
        if fault.kind in FINAL_FAULTS:
            self.end(fault)
        return fault
