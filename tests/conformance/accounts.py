"""The accounts of the real server: many without limits, and some for each set of limits that a case requires."""

from itertools import count

from pelton import AccountLimits
from tests.conformance.cases import CASES

_PLAIN = 2000
_LIMITED = 50
_KEYS = {
    "max_memory": "max_mem",
    "max_storage": "max_file",
    "max_streams": "max_streams",
    "max_consumers": "max_consumers",
    "max_ack_pending": "max_ack_pending",
    "memory_max_stream_bytes": "mem_max_stream_bytes",
    "storage_max_stream_bytes": "store_max_stream_bytes",
    "max_bytes_required": "max_bytes_required",
}


def _kinds() -> list[AccountLimits | None]:
    """The sets of limits in the order in which they are first used; the first is empty."""
    kinds: list[AccountLimits | None] = [None]
    for case in CASES:
        if case.limits not in kinds:
            kinds.append(case.limits)
    return kinds


def _jetstream(limits: AccountLimits | None) -> str:
    if limits is None:
        return "jetstream: enabled"
    said = (f"{key}: {str(getattr(limits, field)).lower()}" for field, key in _KEYS.items())
    return f"jetstream {{ {', '.join(said)} }}"


def server_config() -> str:
    """Return the accounts as a server's configuration."""
    lines = []
    for kind, limits in enumerate(_kinds()):
        for number in range(_PLAIN if limits is None else _LIMITED):
            name = f"{kind}x{number}"
            lines.append(f"a{name} {{ {_jetstream(limits)}, users: [{{ user: u{name}, password: p }}] }}")
    return "accounts {\n" + "\n".join(lines) + "\n}"


class Accounts:
    """Unused accounts of the server at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._kinds = _kinds()
        self._numbers = [count() for _ in self._kinds]

    def take(self, limits: AccountLimits | None) -> str:
        """Return the address of a fresh account with these limits."""
        kind = self._kinds.index(limits)
        return self._url.replace("//", f"//u{kind}x{next(self._numbers[kind])}:p@")
