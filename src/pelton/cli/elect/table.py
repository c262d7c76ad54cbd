"""The display of an election: on a terminal a table that is overwritten, otherwise lines."""

from __future__ import annotations

import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pelton.cli.elect.candidate_pool import CandidateProcess
from pelton.cli.output import write_styled

_HELP: Final = "k: kill the leader   d: let it step down   q: end"
_STYLES: Final = {"leader": "\x1b[1;32m", "killed": "\x1b[1;31m", "failed": "\x1b[1;31m", "gone": "\x1b[31m"}
_UP: Final = "\x1b[{}F\x1b[J"


def rows(members: list[CandidateProcess], now: float) -> list[tuple[str, str]]:
    """Return the table's lines, each with its style."""
    width = max(len(member.settings.name) for member in members)
    head = f"{'candidate':<{width}}  {'process':>8}  {'state':<10} {'for':>8}  {'token':>7}  {'terms':>5}  note"
    lines = [(head, "")]
    for member in members:
        token = str(member.token) if member.state == "leader" else ""
        text = (
            f"{member.settings.name:<{width}}  {member.pid or '':>8}  {member.state:<10} {now - member.since:>6.1f} s"
            f"  {token:>7}  {member.terms:>5}  {member.note}"
        )
        lines.append((text[:118], _STYLES.get(member.state, "")))
    return lines


class CandidateTable:
    """A table on a terminal."""

    def __init__(self) -> None:
        self._height = 0

    def show(self, members: list[CandidateProcess], now: float) -> None:
        """Overwrite the previous table."""
        lines = [*rows(members, now), ("", ""), (_HELP, "")]
        over = _UP.format(self._height) if self._height else ""
        self._height = len(lines)
        write_styled(lines, over)


@contextmanager
def keys(add: Callable[[int, Callable[[], None]], object], pressed: Callable[[str], None]) -> Iterator[None]:
    """Call ``pressed`` with each key of the terminal; ``add`` adds a reader to the event loop."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    add(terminal, lambda: pressed(sys.stdin.read(1)))
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
