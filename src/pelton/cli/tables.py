"""What commands show: tables, facts about one thing, and JSON.

On a terminal, rich draws the tables, if it is installed (``pip install 'pelton[cli]'``); elsewhere, and without it,
they are plain columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pelton.api.durations import enc_hook
from pelton.api.times import SECOND, parse_rfc3339
from pelton.cli.output import harmless, write_line

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
Cell = str | int | float | bool


def write_table(heads: Sequence[str] | None, rows: Iterable[Sequence[Cell]], *, empty: str) -> None:
    """Write rows under their heads, if they have any, numbers to the right; ``empty`` if there are no rows."""
    found = [list(row) for row in rows]
    if not found:
        write_line(empty)
        return
    right = [all(map(_is_number, column)) for column in zip(*found, strict=True)]
    texts = [[text_of(cell) for cell in row] for row in found]
    if not (sys.stdout.isatty() and _write_rich(heads, texts, right)):
        _write_plain(heads, texts, right)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _write_plain(heads: Sequence[str] | None, rows: list[list[str]], right: Sequence[bool]) -> None:
    lines = [[harmless(text) for text in row] for row in (*([heads] if heads else ()), *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        write_line("  ".join(text.rjust(width) if numeric else text.ljust(width) for text, width, numeric in cells))


def _write_rich(heads: Sequence[str] | None, rows: list[list[str]], right: Sequence[bool]) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=bool(heads))
    for head, numeric in zip(heads or [""] * len(right), right, strict=True):
        table.add_column(head, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(text)) for text in row))
    Console().print(table)
    return True


def write_facts(title: str, facts: Mapping[str, Cell]) -> None:
    """Write facts about one thing, a line each; those without a value are left out."""
    shown = {name: text_of(value) for name, value in facts.items() if value != ""}
    width = max(map(len, shown), default=0)
    write_line(title)
    for name, text in shown.items():
        write_line(f"  {name + ':':<{width + 1}}  {text}")


def write_json(value: object) -> None:
    """Write a value as one JSON document, in ASCII, so that no data can control a terminal."""
    write_line_as_is(json.dumps(plain(value), indent=2))


def write_json_line(value: object) -> None:
    """Write a value as one line of JSON, for output that goes on."""
    write_line_as_is(json.dumps(plain(value)))


def write_line_as_is(text: str) -> None:
    """Write text that is known to be printable, lines included."""
    for line in text.split("\n"):
        write_line(line, flush=True)


def plain(value: object) -> Any:
    """Return a value as JSON has it: NATS's own field names and units for configurations and infos."""
    return json.loads(msgspec.json.encode(value, enc_hook=enc_hook))


def text_of(cell: Cell) -> str:
    """Return the text of a cell: numbers with separators, yes and no."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.3g}" if isinstance(cell, float) else cell


def size_text(size: int) -> str:
    """Return a number of bytes as text."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def moment_text(time: str) -> str:
    """Return RFC 3339 text as a short time in UTC; empty for none."""
    return time[:19].replace("T", " ") if time else ""


def ago_text(time: str, now: int) -> str:
    """Return how long ago a time was, as text such as ``5 s`` or ``2 d``; empty for none."""
    if not time:
        return ""
    seconds = max(now - parse_rfc3339(time), 0) / SECOND
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def seconds_text(seconds: float) -> str:
    """Return a duration as text, such as ``12 ms`` or ``3.4 s``; empty for 0."""
    if not seconds:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
