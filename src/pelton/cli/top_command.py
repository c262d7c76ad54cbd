"""``pelton top``: streams, consumers and queues, again and again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from pelton import observe
from pelton.cli.output import write_line, write_styled
from pelton.cli.stores import define_verb
from pelton.cli.tables import Cell, ago_text, plain, seconds_text, size_text, text_of, write_json_line
from pelton.cli.values import count, duration
from pelton.connect import Jet

_HOME: Final = "\x1b[H\x1b[2J"
_BOLD: Final = "\x1b[1m"
_ROWS: Final = 15
_NAME: Final = 32
_COLUMN: Final = 12


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _top)
    parser.add_argument("--every", type=duration, default=2.0, metavar="TIME", help="default 2s")
    parser.add_argument("--count", type=count, metavar="N", help="end after so many pictures (without a terminal: 1)")


async def _top(jet: Jet, options: argparse.Namespace) -> None:
    clock, on_terminal = jet.runtime.clock, sys.stdout.isatty()
    pictures = options.count or (0 if on_terminal else 1)
    before: dict[str, int] = {}
    since, shown = clock.monotonic(), 0
    while True:
        streams = await observe.stream_summaries(jet)
        seconds, since = clock.monotonic() - since, clock.monotonic()
        rates = {
            one.name: (one.last_seq - before[one.name]) / seconds for one in streams if one.name in before and seconds
        }
        before = {one.name: one.last_seq for one in streams}
        consumers, queues = await observe.consumer_summaries(jet), await observe.queue_summaries(jet)
        if options.json:
            parts = {"streams": streams, "consumers": consumers, "queues": queues, "published_per_second": rates}
            write_json_line({name: plain(part) for name, part in parts.items()})
        else:
            lines = _picture(streams, consumers, queues, rates, clock.now())
            if on_terminal:
                write_styled(lines, _HOME)
            else:
                for text, _ in lines:
                    write_line(text)
        shown += 1
        if pictures and shown >= pictures:
            return
        await clock.sleep(options.every)


def _picture(
    streams: list[observe.StreamSummary],
    consumers: list[observe.ConsumerSummary],
    queues: list[observe.QueueSummary],
    rates: dict[str, float],
    now: int,
) -> list[tuple[str, str]]:
    """Return the lines, each with its style: those with most to do come first."""
    lines = [(_line(("queue", "pending", "held", "running", "retrying", "dead", "per minute", "run", "oldest")), _BOLD)]
    for queue in sorted(queues, key=lambda one: -one.pending)[:_ROWS]:
        cells = (
            queue.name,
            queue.pending,
            queue.held,
            queue.running,
            queue.retrying,
            queue.dead_letters,
            queue.per_minute,
        )
        lines.append((_line((*cells, seconds_text(queue.run.median), ago_text(queue.oldest_at, now))), ""))
    heads = ("consumer", "pending", "ack pending", "redelivered", "lag")
    lines += [("", ""), (_line(heads), _BOLD)]
    for each in sorted(consumers, key=lambda one: -one.lag)[:_ROWS]:
        name = f"{each.stream} > {each.name}"
        lines.append((_line((name, each.pending, each.ack_pending, each.redelivered, each.lag)), ""))
    lines += [("", ""), (_line(("stream", "messages", "size", "per second", "last")), _BOLD)]
    for stream in sorted(streams, key=lambda one: (-rates.get(one.name, 0), -one.messages))[:_ROWS]:
        rate = rates.get(stream.name, "")
        last = ago_text(stream.last_at, now)
        lines.append((_line((stream.name, stream.messages, size_text(stream.bytes), rate, last)), ""))
    return lines


def _line(cells: Sequence[Cell]) -> str:
    name, *others = map(text_of, cells)
    return f"{name[:_NAME]:<{_NAME}}" + "".join(f"{text:>{_COLUMN}}" for text in others)
