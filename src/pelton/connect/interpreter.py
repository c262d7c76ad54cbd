"""What kind of Python this is, where it matters to users."""

from __future__ import annotations

import sys
import warnings


def warn_without_gil() -> None:
    """Warn on a free-threaded Python that runs without its lock: nothing has been tried there."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    if is_enabled is not None and not is_enabled():
        warnings.warn(
            "Pelton is not tested on a free-threaded Python without the GIL: set PYTHON_GIL=1, or use another Python",
            RuntimeWarning,
            stacklevel=3,
        )
