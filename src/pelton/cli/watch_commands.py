"""Commands that look at a store or cluster: ``pelton info``, ``top``, ``metrics``, ``dashboard``."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pelton import observe
from pelton.api import ConfigError, PeltonError
from pelton.api.wording import age_text, bytes_text
from pelton.cli.arguments import (
    STORE_VARIABLE,
    add_key,
    count,
    define_verb,
    duration,
    is_file,
    opening_of,
    port,
    until_stopped,
)
from pelton.cli.output import (
    Cell,
    plain,
    seconds_text,
    text_of,
    write_facts,
    write_json,
    write_json_line,
    write_line,
    write_line_as_is,
    write_styled,
)
from pelton.connect import Jet
from pelton.runtime.processes import StopSignals

_HOME: Final = "\x1b[H\x1b[2J"
_BOLD: Final = "\x1b[1m"
_ROWS: Final = 15
_NAME: Final = 32
_COLUMN: Final = 12
_BETWEEN_LOOKS_S: Final = 0.3


def define_info(parser: argparse.ArgumentParser) -> None:
    define_verb(parser, _info)


async def _info(jet: Jet, options: argparse.Namespace) -> None:
    path = options.store if is_file(options.store) else ""
    store = await observe.store_summary(jet, path)
    if store.writer_pid:
        # Who writes for a moment has ended by the second look.
        await jet.runtime.clock.sleep(_BETWEEN_LOOKS_S)
        store = await observe.store_summary(jet, path)
    if options.json:
        write_json(store)
        return
    write_facts(
        options.store if path else "cluster",
        {
            "streams": store.streams,
            "consumers": store.consumers,
            "messages": store.messages,
            "size of messages": bytes_text(store.bytes),
            "queues": store.queues,
            "buckets": store.buckets,
            "object stores": store.object_stores,
            "file": bytes_text(store.file_bytes) if path else "",
            "log": bytes_text(store.log_bytes) if path else "",
            "writer": f"held by process {store.writer_pid}, which writes nothing" if store.writer_held else "",
        },
    )


# --- ``pelton top``: streams, consumers and queues, again and again


def define_top(parser: argparse.ArgumentParser) -> None:
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
        lines.append((_line((*cells, seconds_text(queue.run.median), age_text(queue.oldest_at, now))), ""))
    heads = ("consumer", "pending", "ack pending", "redelivered", "lag")
    lines += [("", ""), (_line(heads), _BOLD)]
    for each in sorted(consumers, key=lambda one: -one.lag)[:_ROWS]:
        name = f"{each.stream} > {each.name}"
        lines.append((_line((name, each.pending, each.ack_pending, each.redelivered, each.lag)), ""))
    lines += [("", ""), (_line(("stream", "messages", "size", "per second", "last")), _BOLD)]
    for stream in sorted(streams, key=lambda one: (-rates.get(one.name, 0), -one.messages))[:_ROWS]:
        rate = rates.get(stream.name, "")
        last = age_text(stream.last_at, now)
        lines.append((_line((stream.name, stream.messages, bytes_text(stream.bytes), rate, last)), ""))
    return lines


def _line(cells: Sequence[Cell]) -> str:
    name, *others = map(text_of, cells)
    return f"{name[:_NAME]:<{_NAME}}" + "".join(f"{text:>{_COLUMN}}" for text in others)


# --- ``pelton metrics``: the metrics of a store for Prometheus, on a port or once


def define_metrics(parser: argparse.ArgumentParser) -> None:
    define_verb(parser, _metrics)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=7777, metavar="N", help="default 7777; 0: any that is free")
    parser.add_argument("--once", action="store_true", help="print the metrics and end")
    parser.add_argument(
        "--internals", action="store_true", help="also the consumers by which queues, locks and elections work"
    )


async def _metrics(jet: Jet, options: argparse.Namespace) -> None:
    try:
        from pelton.metrics import MetricsServer, metrics_text
        from pelton.observe.samples import samples
    except ImportError as error:
        raise ConfigError(f"metrics need {error.name}: pip install 'pelton[metrics]'") from None
    path = options.store if is_file(options.store) else ""
    if options.json:
        write_json([sample._asdict() for sample in await samples(jet, path, internals=options.internals)])
        return
    if options.once:
        text, _ = await metrics_text(jet, path=path, internals=options.internals)
        write_line_as_is(text.decode().rstrip("\n"))
        return
    try:
        server = MetricsServer(jet, options.host, options.port, path=path, internals=options.internals)
    except OSError as error:
        raise ConfigError(f"{options.host}:{options.port} cannot be listened on: {error.strerror}") from None
    try:
        write_line(f"Metrics are at http://{options.host}:{server.port}/metrics", flush=True)
        await until_stopped()
    finally:
        # Also if this is cancelled: a request that waits for the loop must be answered first.
        await asyncio.shield(server.close())


# --- ``pelton dashboard``: a live page on a store or cluster, for a browser

TOKEN: Final = "PELTON_DASHBOARD_TOKEN"
_FIRST_QUEUES: Final = 20


def define_dashboard(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("store", metavar="STORE", help=f"a store file, or an address such as nats://host:4222 (or in {STORE_VARIABLE})")
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1, the only without token)",
    )
    add("--port", type=port, default=8333, metavar="N", help="default 8333; 0: any that is free")
    add("--token", metavar="TEXT", help=f"what viewers must give; in {TOKEN}, other users of the machine cannot see it")
    add(
        "--allow-actions",
        action="store_true",
        help="let viewers cancel, redrive, pause, purge, publish; a token allows it, too",
    )
    add("--read-only", action="store_true", help="no actions, whatever else is given")
    add_key(parser)
    parser.set_defaults(run=run_dashboard)


def run_dashboard(options: argparse.Namespace) -> int:
    """Serve the page until SIGTERM or SIGINT."""
    token = options.token or os.environ.get(TOKEN, "")
    if not token and not _is_loopback(options.host):
        raise ConfigError(f"dashboard: {options.host} can be reached by others; give a --token")
    return asyncio.run(_serve(options, token, (bool(token) or options.allow_actions) and not options.read_only))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve(options: argparse.Namespace, token: str, actions: bool) -> int:
    try:
        from pelton import dashboard
        from pelton.dashboard.app import DashboardServer
    except ImportError as error:
        raise ConfigError(f"the dashboard needs {error.name}: pip install 'pelton[dashboard]'") from None
    shown = f"[{options.host}]" if ":" in options.host else options.host
    # Without a token, the name of the host is what keeps other sites' scripts out.
    hosts = () if token else {shown, "127.0.0.1", "localhost", "[::1]"}
    path = options.store if is_file(options.store) else ""
    async with opening_of(options, writes=actions) as jet:
        name = "" if path else _without_login(options.store)
        app = dashboard.app(jet, token=token, actions=actions, hosts=hosts, path=path, name=name)
        with _listening(options.host, options.port) as listener:
            server = DashboardServer(app, listener)
            signals = StopSignals(server.stop)
            signals.take()
            try:
                await _look_around(jet)
                write_line(f"The dashboard is at http://{shown}:{listener.getsockname()[1]}/", flush=True)
                await server.serve()
            finally:
                signals.give_back()
    return 0


def _without_login(address: str) -> str:
    """Return an address as it may be shown: without a user's name and password, or a token."""
    scheme, separator, rest = address.rpartition("//")
    return scheme + separator + rest.rpartition("@")[2]


async def _look_around(jet: Jet) -> None:
    """Count what a large store counts once, before a first viewer waits for it."""
    with suppress(PeltonError):
        await observe.stream_summaries(jet)
        await observe.queue_summaries(jet, limit=_FIRST_QUEUES)


def _listening(host: str, number: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, number), family=family)
    except OSError as error:
        raise ConfigError(f"{host}:{number} cannot be listened on: {error.strerror}") from None
