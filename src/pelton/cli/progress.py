"""The progress of a command: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from pelton.cli.output import write_line, write_over


class Bar:
    """A line that is overwritten as the work proceeds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, total: int, part: str = "") -> None:
        """Show the amounts done and total, of a part if the work has several; ``total`` 0: unknown."""
        what = f"{self._what} {part}".rstrip()
        shown = f"{what}: {done * 100 // total} %" if total else f"{what}: {done:,}"
        # The rest of a longer line before it is overwritten.
        shown = shown.ljust(len(self._shown))
        if shown != self._shown and sys.stderr.isatty():
            self._shown = shown
            write_over(shown)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            write_line("", error=True)
