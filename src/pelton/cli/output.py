"""What commands show and ask: lines, tables, facts, JSON, messages, a progress bar.

It is the only place that writes to a terminal, so that no data can control it: names of streams and objects, subjects,
keys, errors and file names come from others, and a terminal obeys escape sequences in them: they could clear or rename
it, or falsify what it shows.

On a terminal, rich draws the tables, if it is installed (``pip install 'pelton[cli]'``); elsewhere, and without it,
they are plain columns.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from pelton.api import ConfigError, Headers, StoredMessage
from pelton.api.times import enc_hook
from pelton.api.wording import number_text, span_text, visible_text


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


def write_logs() -> None:
    """Write warnings of the library to standard error, escaped like all output."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _Harmless(logging.Formatter):
    """One line, and a traceback's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible_text, super().format(record).split("\n")))


_PLAIN = "\x1b[0m"


Cell = str | int | float | bool
T = TypeVar("T")


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
    lines = [[visible_text(text) for text in row] for row in (*([heads] if heads else ()), *rows)]
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
        table.add_row(*(Text(visible_text(text)) for text in row))
    Console().print(table)
    return True


def write_found(
    options: argparse.Namespace, found: Sequence[T], heads: str, row: Callable[[T], Sequence[Cell]], *, empty: str
) -> None:
    """Write what was found: names alone, JSON, or a table under ``heads``, which commas part, as the options ask."""
    if getattr(options, "names", False):
        for name in map(attrgetter("name"), found):
            write_line(name)
    elif options.json:
        write_json(found)
    else:
        write_table(heads.split(", "), map(row, found), empty=empty)


def write_done(options: argparse.Namespace, value: object, text: str) -> None:
    """Write a value as JSON, if that is asked for, or else the text that says what was done."""
    if options.json:
        write_json(value)
    else:
        write_line(text)


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
    return number_text(cell) if isinstance(cell, int | float) else cell


def seconds_text(seconds: float) -> str:
    """Return a duration as text, such as ``12 ms`` or ``3.4 s``; empty for 0."""
    return span_text(seconds) if seconds else ""


# --- the progress of a command: one line on a terminal, nothing elsewhere


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


# --- shows messages: as text for people, as JSON with the payload in base64 for programs, or as they are


def payload_text(data: bytes) -> str | None:
    """Return a payload as text; None if it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def payload_json(data: bytes) -> dict[str, Any]:
    """Return a payload for JSON: as text, if it is text, and as base64, as NATS's API has it."""
    return {"text": payload_text(data), "data": base64.b64encode(data).decode()}


def show_message(facts: Mapping[str, Any], headers: Headers, data: bytes, *, as_json: bool) -> None:
    """Write a message: facts about it, its headers, its payload."""
    if as_json:
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


def show_stored(stored: StoredMessage, *, as_json: bool) -> None:
    """Write a message of a stream."""
    facts = {"seq": stored.seq, "subject": stored.subject, "time": stored.time}
    show_message(facts, stored.headers, stored.data, as_json=as_json)


def write_raw(data: bytes) -> None:
    """Write a payload to standard output as it is, for programs and files."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# --- asks before something is removed for good


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option that answers the question in advance."""
    parser.add_argument("-f", "--force", action="store_true", help="do it, without asking")


def is_agreed(options: argparse.Namespace, question: str) -> bool:
    """Whether it is to be done: ``--force`` was given, or whoever sits at the terminal agrees.

    Raises ConfigError, with the question, if nobody can be asked.
    """
    if options.force:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} If so, add --force")
    write_line(f"{question} (y/N)", error=True, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    write_line("nothing was done", error=True)
    return False
