"""``pelton dashboard``: a live page on a store or cluster, for a browser."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
from contextlib import suppress
from typing import Final

from pelton import observe
from pelton.api import ConfigError, PeltonError
from pelton.cli.keys import add_key
from pelton.cli.listening import port
from pelton.cli.output import write_line
from pelton.cli.stores import VARIABLE, is_file, opened
from pelton.connect import Jet
from pelton.runtime.stop_signals import StopSignals

TOKEN: Final = "PELTON_DASHBOARD_TOKEN"
_FIRST_QUEUES: Final = 20


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    add = parser.add_argument
    add("store", metavar="STORE", help=f"a store file, or an address such as nats://host:4222 (or in {VARIABLE})")
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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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
        from pelton.dashboard.serving import DashboardServer
    except ImportError as error:
        raise ConfigError(f"the dashboard needs {error.name}: pip install 'pelton[dashboard]'") from None
    shown = f"[{options.host}]" if ":" in options.host else options.host
    # Without a token, the name of the host is what keeps other sites' scripts out.
    hosts = () if token else {shown, "127.0.0.1", "localhost", "[::1]"}
    path = options.store if is_file(options.store) else ""
    async with opened(options, writes=actions) as jet:
        app = dashboard.app(jet, token=token, actions=actions, hosts=hosts, path=path)
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
