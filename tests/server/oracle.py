"""A real server with an account for each script, to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.nats_server import nats_server

_ACCOUNTS = 100


class Oracle:
    """A running nats-server; ``user`` returns the name of a user with an unused account, whose password is ``p``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._numbers = itertools.count()

    def user(self) -> str:
        return f"u{next(self._numbers)}"


@contextmanager
def running_oracle(home: Path) -> Iterator[Oracle]:
    names = (f"a{n} {{ jetstream: enabled, users: [{{ user: u{n}, password: p }}] }}" for n in range(_ACCOUNTS))
    accounts = "\n".join(names)
    with nats_server(home, extra=f"accounts {{ {accounts} }}") as running:
        yield Oracle(running.port)
