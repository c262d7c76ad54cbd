"""Processes that record what they hold and when, and the invariants of all their records."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SOON = 120.0


class Line(NamedTuple):
    at: int
    token: int
    kind: str
    who: str


class Process:
    """A process that runs ``tests.locks.<module>`` with its name, its log and more arguments; and its records."""

    def __init__(self, module: str, address: str, folder: Path, name: str, *more: object) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        arguments = [address, name, str(self.log), *map(str, more)]
        self.process = subprocess.Popen([sys.executable, "-m", f"tests.locks.{module}", *arguments])
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        text = self.log.read_bytes() if self.log.exists() else b""
        # A killed process may have left an incomplete line.
        whole = text.rfind(b"\n") + 1
        for line in text[self._read : whole].decode().splitlines():
            kind, at, token = line.split()
            self._lines.append(Line(int(at), int(token), kind, self.name))
        self._read = whole
        return self._lines

    def end(self) -> None:
        self.process.kill()
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()


def check_tokens(lines: Iterable[Line]) -> set[tuple[int, str]]:
    """Check that tokens grow with time and that none was given to two; return the holder of each."""
    for earlier, later in pairwise(sorted(lines)):
        assert later.token >= earlier.token, f"{later} though {earlier}"
    owners = {(line.token, line.who) for line in lines}
    assert len(owners) == len({token for token, _ in owners}), "two were given one token"
    return owners


def tell(took: Mapping[str, list[float]]) -> None:
    """Print how long each failure of a holder kept the others waiting, in seconds."""
    for what, seconds in took.items():
        if seconds:
            found = sorted(seconds)
            middle, longest = found[len(found) // 2] * 1e3, found[-1] * 1e3
            print(f"{what}: median {middle:.0f} ms, longest {longest:.0f} ms of {len(found)}")
