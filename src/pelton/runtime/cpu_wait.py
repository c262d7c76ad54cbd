"""How long a thread was kept from running, which is nobody's fault but that of too few CPUs."""

from contextlib import suppress
from typing import Final

_NS: Final = 1e9
_PLACE: Final = "/proc/thread-self/schedstat"


def cpu_wait() -> float:
    """Seconds that the calling thread could run and had no CPU, since it began; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError), open(_PLACE, "rb", buffering=0) as file:
        return int(file.read().split()[1]) / _NS
    return 0.0
