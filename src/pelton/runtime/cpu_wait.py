"""How long a thread was ready to run but had to wait for a CPU."""

from contextlib import suppress
from typing import Final

_NS: Final = 1e9
_PLACE: Final = "/proc/thread-self/schedstat"


def cpu_wait() -> float:
    """Return the seconds that the calling thread waited for a CPU since its start; 0 if the system does not tell."""
    with suppress(OSError, ValueError, IndexError), open(_PLACE, "rb", buffering=0) as file:
        return int(file.read().split()[1]) / _NS
    return 0.0
