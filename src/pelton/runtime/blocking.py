"""Time for code that blocks its thread for microseconds: spinning on a lock, measuring a sync.

Only storage needs it, and only where a suspended coroutine would cost more than the wait itself.
"""

import time
from typing import Final

stopwatch: Final = time.perf_counter
"""Return the seconds since an arbitrary start, at the finest resolution."""

pause: Final = time.sleep
"""Block the calling thread for this many seconds."""
