"""How far a command is: one line of a terminal, nothing where there is none."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from pelton.cli.output import write_line, write_over


class Bar:
    """A line that is written over while work goes on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, total: int) -> None:
        """Tell how much of how much is done; ``total`` 0: nobody knows of how much."""
        shown = f"{self._what}: {done * 100 // total} %" if total else f"{self._what}: {done:,}"
        if shown != self._shown and sys.stderr.isatty():
            self._shown = shown
            write_over(shown)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            write_line("", error=True)
