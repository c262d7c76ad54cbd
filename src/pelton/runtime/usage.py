"""What this process uses of its machine."""

import os
import resource
import sys
import time
from contextlib import suppress
from typing import Final

_STATM: Final = "/proc/self/statm"
_KIB: Final = 1024


def cpu_seconds() -> float:
    """Return the CPU time of this process, in all its threads."""
    return time.process_time()


def memory_bytes() -> int:
    """Return the memory that this process holds now; where the system does not tell, the most it ever held."""
    with suppress(OSError, ValueError, IndexError), open(_STATM, "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KIB
