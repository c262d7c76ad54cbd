"""``pelton top``: queues, consumers and streams with most to do, again and again, as far as they fit the terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from pelton import observe
from pelton.api import PeltonError
from pelton.api.wording import age_text, bytes_text, moment_text
from pelton.cli.arguments import TABLE, is_file, option, store_command
from pelton.cli.output import (
    Cell,
    in_order_of,
    pauses_text,
    pressed_keys,
    seconds_text,
    table_lines,
    write_json_line,
    write_line,
    write_styled,
)
from pelton.connect import Jet
from pelton.observe.holdings import INTERNAL
from pelton.runtime import Signal

_OVER: Final = "\x1b[H\x1b[2J"
_BOLD: Final = "\x1b[1m"
_HELP: Final = "q: end   p: pause   s: sort by the next column   a: all, with internals"
_ROWS: Final = 15
"""Of each kind, where there is no terminal that has a height."""


class _Picture(NamedTuple):
    """What there is at one moment; ``rates`` are messages stored per second, by stream."""

    streams: list[observe.StreamSummary]
    consumers: list[observe.ConsumerSummary]
    queues: list[observe.QueueSummary]
    rates: Mapping[str, float]
    store: observe.StoreSummary
    now: int


class _Section(NamedTuple):
    """A table of the picture: its columns, those that a narrow terminal leaves out, and how its rows are made."""

    heads: str
    drop: str
    rows_of: Callable[[_Picture], list[Sequence[Cell]]]


def _queues(picture: _Picture) -> list[Sequence[Cell]]:
    return [
        (one.name, one.pending, one.held, one.running, one.retrying, one.dead_letters, one.per_minute,
         seconds_text(one.run.median), age_text(one.oldest_at, picture.now),
         one.error or pauses_text(one))
        for one in sorted(picture.queues, key=lambda one: -one.pending)
    ]  # fmt: skip


def _consumers(picture: _Picture) -> list[Sequence[Cell]]:
    return [
        (f"{one.stream} > {one.name}", one.pending, one.ack_pending, one.redelivered, one.lag)
        for one in sorted(picture.consumers, key=lambda one: -one.lag)
    ]


def _streams(picture: _Picture) -> list[Sequence[Cell]]:
    rates = picture.rates
    return [
        (one.name, one.messages, bytes_text(one.bytes), rates.get(one.name, ""), age_text(one.last_at, picture.now))
        for one in sorted(picture.streams, key=lambda one: (-rates.get(one.name, 0), -one.messages))
    ]


_QUEUE_COLUMNS: Final = "queue, pending, held, running, retrying, dead, per minute, run, oldest, state"
_SECTIONS: Final = (
    _Section(_QUEUE_COLUMNS, "run, per minute, held", _queues),
    _Section("consumer, pending, ack pending, redelivered, lag", "redelivered", _consumers),
    _Section("stream, messages, size, per second, last", "last", _streams),
)


@store_command("top")
@TABLE
@option("--all", "also streams and consumers by which queues, locks and elections work")
@option("--every TIME", "default 2s", default=2.0)
@option("--count N", "end after so many pictures (without a terminal: 1)")
async def _top(jet: Jet, options: argparse.Namespace) -> None:
    top = Top(jet, options)
    on_terminal = sys.stdout.isatty() and not options.json
    with ExitStack() as stack:
        if on_terminal and sys.stdin.isatty():
            stack.enter_context(pressed_keys(asyncio.get_running_loop().add_reader, top.press))
        await top.show_pictures(options.count or (0 if on_terminal else 1), on_terminal)


class Top:
    """The pictures, one after the other, and what keys have changed of them."""

    def __init__(self, jet: Jet, options: argparse.Namespace) -> None:
        self._jet = jet
        self._options = options
        self._clock = jet.runtime.clock
        self._path: str = options.store if is_file(options.store) else ""
        self._pressed = Signal()
        self._is_over = self._is_paused = False
        self._before: dict[str, int] = {}
        self._since: float = self._clock.monotonic()

    def press(self, key: str) -> None:
        """Do what a key stands for."""
        if key == "q":
            self._is_over = True
        elif key == "p":
            self._is_paused = not self._is_paused
        elif key == "a":
            self._options.all = not self._options.all
        elif key == "s":
            columns = ["", *_QUEUE_COLUMNS.split(", ")]
            at = columns.index(self._options.sort) if self._options.sort in columns else 0
            self._options.sort = columns[(at + 1) % len(columns)]
        self._pressed.notify()

    async def show_pictures(self, number: int, on_terminal: bool) -> None:
        """Show so many pictures, 0 for any number, until the key that ends it."""
        shown, picture, trouble = 0, await self._look(), ""
        while True:
            seen = self._pressed.generation
            if self._options.json:
                write_json_line(_record(picture))
            elif on_terminal:
                size = shutil.get_terminal_size()
                write_styled(self._lines(picture, trouble, size.columns, size.lines), _OVER)
            else:
                for text, _ in self._lines(picture, trouble, None, None):
                    write_line(text)
            shown += 1
            if number and shown >= number:
                return
            await self._pressed.wait_at_most(self._clock, None if self._is_paused else self._options.every, seen)
            if self._is_over:
                return
            if not self._is_paused:
                picture, trouble = await self._look_again(picture, on_terminal)

    async def _look_again(self, last: _Picture, on_terminal: bool) -> tuple[_Picture, str]:
        """Return the next picture; on a terminal, the last one and why there is no other."""
        try:
            return await self._look(), ""
        except PeltonError as error:
            if not on_terminal:
                raise
            return last, str(error)

    async def _look(self) -> _Picture:
        jet, now = self._jet, self._clock.monotonic()
        streams = await observe.stream_summaries(jet)
        seconds, before = now - self._since, self._before
        rates = {one.name: (one.last_seq - before[one.name]) / seconds for one in streams if one.name in before}
        self._since, self._before = now, {one.name: one.last_seq for one in streams}
        own = {one.name for one in streams if one.kind in INTERNAL and not self._options.all}
        streams = [one for one in streams if one.name not in own]
        consumers = [one for one in await observe.consumer_summaries(jet) if one.stream not in own]
        queues, store = await observe.queue_summaries(jet), await observe.store_summary(jet, self._path)
        return _Picture(streams, consumers, queues, rates, store, self._clock.now())

    def _lines(self, picture: _Picture, trouble: str, width: int | None, height: int | None) -> list[tuple[str, str]]:
        """Return the lines, each with its style; as many rows of each kind as there is room for."""
        lines = [(text[:width], _BOLD) for text in self._header(picture, trouble)]
        tables = []
        for section in _SECTIONS:
            heads, rows = section.heads.split(", "), section.rows_of(picture)
            if self._options.sort.removeprefix("-") in heads:
                rows = in_order_of(rows, heads, lambda row: row, self._options.sort)
            tables.append(table_lines(heads, rows, section.drop, None if self._options.wide else width))
        # The header, a line before each table, and the keys.
        shares = _shares([len(table) for table in tables], None if height is None else height - len(lines) - 4)
        for table, share in zip(tables, shares, strict=True):
            lines += [("", ""), *((text, "" if at else _BOLD) for at, text in enumerate(table[:share]))]
        return lines if height is None else [*lines, (_HELP[:width], "")]

    def _header(self, picture: _Picture, trouble: str) -> list[str]:
        store, sort = picture.store, self._options.sort
        states = (moment_text(picture.now), "paused" if self._is_paused else "", f"by {sort}" if sort else "")
        facts = [f"{store.streams:,} streams", f"{store.messages:,} messages"]
        if self._path:
            free = shutil.disk_usage(os.path.dirname(os.path.abspath(self._path))).free
            facts = [f"file {bytes_text(store.file_bytes)}", f"log {bytes_text(store.log_bytes)}",
                     f"{bytes_text(free)} free on the disk"]  # fmt: skip
        if store.writer_held:
            facts.append(f"process {store.writer_pid} holds the writer")
        # The store last: a long path is what a narrow terminal crops.
        lines = ["   ".join(["pelton top", *filter(None, states), self._options.store]), "   ".join(facts)]
        return [*lines, trouble] if trouble else lines


def _shares(wanted: Sequence[int], room: int | None) -> list[int]:
    """Return how many lines each table gets: a part of the room, and what the others leave, the first one first."""
    if room is None:
        return [_ROWS + 1] * len(wanted)
    shares = [min(each, max(room // len(wanted), 1)) for each in wanted]
    for at, each in enumerate(wanted):
        shares[at] += min(each - shares[at], max(room - sum(shares), 0))
    return shares


def _record(picture: _Picture) -> dict[str, Any]:
    parts = {"streams": picture.streams, "consumers": picture.consumers, "queues": picture.queues}
    return {**parts, "published_per_second": picture.rates, "store": picture.store}
