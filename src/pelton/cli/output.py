"""Writes the commands' output: the only place that writes to a terminal, so that no data can control it.

Names of streams and objects, subjects, keys, errors and file names come from others. A terminal obeys escape
sequences in them: they could clear or rename it, or falsify what it shows.
"""

from __future__ import annotations

import logging
import sys


def harmless(text: str) -> str:
    r"""Return text with every character that cannot be printed spelled out: ESC as ``\x1b``, a line break as ``\n``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text)


def write_line(text: str, *, error: bool = False, flush: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    print(harmless(text), file=sys.stderr if error else sys.stdout, flush=flush)


def write_over(text: str) -> None:
    """Overwrite the terminal's current line, on standard error."""
    print("\r" + harmless(text), end="", file=sys.stderr, flush=True)


def write_styled(lines: list[tuple[str, str]], before: str = "") -> None:
    """Write lines, each a text and the escape sequence that styles it ("" for none), after the sequence ``before``."""
    shown = (f"{style}{harmless(text)}{_PLAIN}" if style else harmless(text) for text, style in lines)
    print(before + "\n".join(shown), flush=True)


def write_logs() -> None:
    """Write warnings of the library to standard error, escaped like all output."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _Harmless(logging.Formatter):
    """One line, and a traceback's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(harmless, super().format(record).split("\n")))


_PLAIN = "\x1b[0m"


def _spelled(char: str) -> str:
    return repr(char)[1:-1]
