"""``pelton metrics``: the metrics of a store for Prometheus, on a port or once."""

from __future__ import annotations

import argparse
import asyncio

from pelton.api import ConfigError
from pelton.cli.listening import port, until_stopped
from pelton.cli.output import write_line
from pelton.cli.stores import define_verb, is_file
from pelton.cli.tables import write_json, write_line_as_is
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _metrics)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=7777, metavar="N", help="default 7777; 0: any that is free")
    parser.add_argument("--once", action="store_true", help="print the metrics and end")


async def _metrics(jet: Jet, options: argparse.Namespace) -> None:
    try:
        from pelton.metrics import MetricsServer, metrics_text
        from pelton.observe.samples import samples
    except ImportError as error:
        raise ConfigError(f"metrics need {error.name}: pip install 'pelton[metrics]'") from None
    path = options.store if is_file(options.store) else ""
    if options.json:
        write_json([sample._asdict() for sample in await samples(jet, path)])
        return
    if options.once:
        text, _ = await metrics_text(jet, path=path)
        write_line_as_is(text.decode().rstrip("\n"))
        return
    try:
        server = MetricsServer(jet, options.host, options.port, path=path)
    except OSError as error:
        raise ConfigError(f"{options.host}:{options.port} cannot be listened on: {error.strerror}") from None
    try:
        write_line(f"Metrics are at http://{options.host}:{server.port}/metrics", flush=True)
        await until_stopped()
    finally:
        # Also if this is cancelled: a request that waits for the loop must be answered first.
        await asyncio.shield(server.close())
