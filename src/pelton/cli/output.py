"""What commands show and ask: lines, tables, facts, JSON, messages, a progress bar.

It is the only place that writes to a terminal, so that no data can control it: names of streams and objects, subjects,
keys, errors and file names come from others, and a terminal obeys escape sequences in them: they could clear or rename
it, or falsify what it shows.

Tables are plain columns. On a terminal they fit its width; elsewhere they have all columns.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from unicodedata import east_asian_width

import msgspec

from pelton.api import ConfigError, Headers, StoredMessage
from pelton.api.times import enc_hook
from pelton.api.wording import number_text, span_text, visible_text

if TYPE_CHECKING:
    from pelton.observe import QueueSummary


def write_line(text: str, *, error: bool = False, flush: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    print(visible_text(text), file=sys.stderr if error else sys.stdout, flush=flush)


def write_over(text: str) -> None:
    """Overwrite the terminal's current line, on standard error."""
    print("\r" + visible_text(text), end="", file=sys.stderr, flush=True)


def write_styled(lines: list[tuple[str, str]], before: str = "") -> None:
    """Write lines, each a text and the escape sequence that styles it ("" for none), after the sequence ``before``."""
    shown = (f"{style}{visible_text(text)}{_PLAIN}" if style else visible_text(text) for text, style in lines)
    print(before + "\n".join(shown), flush=True)


def write_head(text: str) -> None:
    """Write the head of a table on a terminal, in bold if it may have colours."""
    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    write_styled([(text, "" if is_plain else _BOLD)])


def write_logs() -> None:
    """Write warnings of the library to standard error, escaped like all output."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _Harmless(logging.Formatter):
    """One line, and a traceback's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible_text, super().format(record).split("\n")))


_PLAIN: Final = "\x1b[0m"
_BOLD: Final = "\x1b[1m"


_FIGURE: Final = re.compile(r"([\d.,]+) (\w+)")
_UNITS: Final = {
    **{unit: 1024.0**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    "ms": 0.001,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_GAP: Final = 2
_SHORTEST: Final = 8
Cell = str | int | float | bool
T = TypeVar("T")


def write_table(
    heads: Sequence[str] | None, rows: Iterable[Sequence[Cell]], *, empty: str, drop: str = "", wide: bool = False
) -> None:
    """Write rows under their heads, if they have any, numbers to the right; ``empty`` if there are no rows.

    On a terminal that is too narrow, and unless ``wide``, the columns of ``drop`` are left out, the first one first;
    then long texts are cropped. A number is never broken.
    """
    found, on_terminal = [list(row) for row in rows], sys.stdout.isatty()
    if not found:
        write_line(empty)
        return
    width = shutil.get_terminal_size().columns if on_terminal and not wide else None
    for number, line in enumerate(table_lines(heads, found, drop, width)):
        write_head(line) if on_terminal and heads and not number else write_line(line)


def table_lines(
    heads: Sequence[str] | None, rows: Sequence[Sequence[Cell]], drop: str = "", room: int | None = None
) -> list[str]:
    """Return the lines of a table, the head first if it has one, at most ``room`` wide: see :func:`write_table`."""
    found = [*rows] or [[""] * len(heads or ())]
    right = [all(cell == "" or _number_of(cell) is not None for cell in column) for column in zip(*found, strict=True)]
    lines = [[visible_text(text_of(cell)) for cell in row] for row in (*([heads] if heads else ()), *found)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    if room is not None:
        # First what is empty.
        columns_found = enumerate(zip(*found, strict=True))
        least = [at for at, column in columns_found if at and all(cell == "" for cell in column)]
        least += [(heads or ()).index(name) for name in drop.split(", ") if name]
        widths = _fit(widths, right, least, room)
    columns = [one for one in zip(range(len(widths)), widths, right, strict=True) if one[1]]
    filled = ((_fill(line[at], width, numeric) for at, width, numeric in columns) for line in lines)
    return [(" " * _GAP).join(cells) for cells in filled][: len(rows) + bool(heads)]


def _number_of(cell: Cell) -> float | None:
    """Return the number that a cell is, also as a size or a duration; None for any other text."""
    if isinstance(cell, bool):
        return None
    if isinstance(cell, int | float):
        return cell
    found = _FIGURE.fullmatch(cell)
    return float(found[1].replace(",", "")) * _UNITS[found[2]] if found and found[2] in _UNITS else None


def _fit(widths: list[int], right: Sequence[bool], drop: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that fit into the room, 0 for one that is left out."""
    fitted = list(widths)

    def excess() -> int:
        return sum(fitted) + _GAP * (sum(map(bool, fitted)) - 1) - room

    # What is not named goes last, from the right; the first column never.
    for column in (*drop, -1, *(one for one in reversed(range(1, len(widths))) if one not in drop)):
        if column == -1:
            _shorten(fitted, right, excess)
        elif excess() > 0:
            fitted[column] = 0
    _shorten(fitted, right, excess, 1)
    return fitted


def _shorten(widths: list[int], right: Sequence[bool], excess: Callable[[], int], least: int = _SHORTEST) -> None:
    """Take from the widest text what is too much; no text gets shorter than ``least``."""
    while excess() > 0:
        texts = [(width, column) for column, width in enumerate(widths) if width > least and not right[column]]
        if not texts:
            return
        widths[max(texts)[1]] -= 1


def _fill(text: str, width: int, numeric: bool) -> str:
    """Return the text of a cell, as wide as its column."""
    if _width(text) > width:
        while _width(text) >= width:
            text = text[:-1]
        text += "…"
    blank = " " * (width - _width(text))
    return blank + text if numeric else text + blank


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: some letters are wide."""
    return len(text) if text.isascii() else len(text) + sum(east_asian_width(char) in "WF" for char in text)


def write_found(
    options: argparse.Namespace,
    found: Sequence[T],
    heads: str,
    row: Callable[[T], Sequence[Cell]],
    *,
    empty: str,
    drop: str = "",
    record: Callable[[T], object] = lambda one: one,
) -> None:
    """Write what was found: names alone, JSON, or a table under ``heads``, which commas part, as the options ask.

    ``drop`` names the columns that a narrow terminal leaves out, the first one first; ``record`` is one for JSON.
    """
    names = heads.split(", ")
    if options.sort:
        found = in_order_of(found, names, row, options.sort)
    if getattr(options, "names", False):
        for name in map(attrgetter("name"), found):
            write_line(name)
    elif options.json:
        write_json([record(one) for one in found])
    else:
        write_table(names, map(row, found), empty=empty, drop=drop, wide=options.wide)


def in_order_of(found: Sequence[T], names: Sequence[str], row: Callable[[T], Sequence[Cell]], by: str) -> list[T]:
    """Return what was found by a column: numbers from the greatest, texts from A; ``-`` before it turns that round."""
    name = by.removeprefix("-")
    if name not in names:
        raise ConfigError(f"--sort {name!r}: there is no such column: {', '.join(names)}")
    cells = [(row(one)[names.index(name)], one) for one in found]
    # Those without a value come last.
    filled, others = [pair for pair in cells if pair[0] != ""], [one for cell, one in cells if cell == ""]
    is_numeric = all(_number_of(cell) is not None for cell, _ in filled)
    filled.sort(
        key=lambda pair: (_number_of(pair[0]) or 0.0 if is_numeric else 0.0, str(pair[0])),
        reverse=is_numeric != by.startswith("-"),
    )
    return [one for _, one in filled] + others


def pauses_text(queue: QueueSummary) -> str:
    """Return what is paused of a queue: ``paused`` if all is, or how many keys and jobs; empty if nothing is."""
    if queue.paused:
        return "paused"
    paused = {"keys": len(queue.paused_keys), "jobs": len(queue.paused_jobs)}
    return ", ".join(f"paused {what}: {count:,}" for what, count in paused.items() if count)


def write_done(options: argparse.Namespace, value: object, text: str) -> None:
    """Write a value as JSON, if that is asked for, or else the text that says what was done; the audit has it, too."""
    options.done = text
    write_lines(options, value, [text])


def write_lines(options: argparse.Namespace, value: object, lines: Iterable[str]) -> None:
    """Write a value as JSON, if that is asked for, or else the lines that say it."""
    if options.json:
        write_json(value)
        return
    for line in lines:
        write_line(line)
    sys.stdout.flush()


async def write_change(options: argparse.Namespace, look: Callable[[], Awaitable[object]], text: str) -> None:
    """Write what :func:`write_done` does, where the value for JSON has to be looked at after what was done."""
    write_done(options, await look() if options.json else None, text)


def write_facts(
    options: argparse.Namespace, value: object, title: str, facts: Mapping[str, Cell], more: Iterable[str] = ()
) -> None:
    """Write a value as JSON, if that is asked for, or else facts about it, a line each, and ``more`` lines.

    Facts without a value are left out.
    """
    shown = {name: text_of(each) for name, each in facts.items() if each != ""}
    width = max(map(len, shown), default=0)
    lines = [f"  {name + ':':<{width + 1}}  {text}" for name, text in shown.items()]
    write_lines(options, value, [title, *lines, *more])


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
    return number_text(cell) if isinstance(cell, int | float) else cell


def seconds_text(seconds: float) -> str:
    """Return a duration as text, such as ``12 ms`` or ``3.4 s``; empty for 0."""
    return span_text(seconds) if seconds else ""


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

    def __exit__(self, *_: object) -> None:
        if self._shown:
            write_line("", error=True)


# --- shows messages: as text for people, as JSON with the payload in base64 for programs, or as they are


def payload_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def payload_json(data: bytes) -> dict[str, Any]:
    """Return a payload for JSON: as text, if it is text, and as base64, as NATS's API has it."""
    return {"text": payload_text(data), "data": base64.b64encode(data).decode()}


def show_message(options: argparse.Namespace, facts: Mapping[str, Any], headers: Headers, data: bytes) -> None:
    """Write a message: facts about it, its headers, its payload; with ``--raw`` the payload alone, as it is."""
    if getattr(options, "raw", False):
        write_raw(data)
        return
    if options.json:
        write_json_line({**facts, "headers": {name: headers.get_all(name) for name in headers}, **payload_json(data)})
        return
    write_line("  ".join(f"{name}: {value}" for name, value in facts.items()))
    for name in headers:
        for value in headers.get_all(name):
            write_line(f"  {name}: {value}")
    show_payload(data)


def show_payload(data: bytes) -> None:
    """Write a payload as lines of text, or as hexadecimal digits."""
    text = payload_text(data)
    if text is None:
        write_line(f"  (hex) {data.hex(' ')}", flush=True)
        return
    for line in text.split("\n"):
        write_line(f"  {line}", flush=True)


def show_stored(options: argparse.Namespace, stored: StoredMessage) -> None:
    """Write a message of a stream."""
    facts = {"seq": stored.seq, "subject": stored.subject, "time": stored.time}
    show_message(options, facts, stored.headers, stored.data)


def write_raw(data: bytes) -> None:
    """Write a payload to standard output as it is, for programs and files."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# --- asks before something is removed for good


class Declined(Exception):  # noqa: N818 - an answer, no failure
    """Whoever was asked did not agree: nothing was done."""


def confirm(options: argparse.Namespace, question: str) -> None:
    """Return if it is to be done: ``--force`` was given, or whoever sits at the terminal agrees.

    Raises Declined; ConfigError, with the question, if nobody can be asked.
    """
    if options.force:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} If so, add --force")
    write_line(f"{question} (y/N)", error=True, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        write_line("nothing was done", error=True)
        raise Declined


@contextmanager
def pressed_keys(add: Callable[[int, Callable[[], None]], object], pressed: Callable[[str], None]) -> Iterator[None]:
    """Call ``pressed`` with each key of the terminal; ``add`` adds a reader to the event loop."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def read() -> None:
        # Not through ``sys.stdin``, whose buffer would keep what was typed at once until the next key.
        for key in os.read(terminal, 64).decode(errors="replace"):
            pressed(key)

    add(terminal, read)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
