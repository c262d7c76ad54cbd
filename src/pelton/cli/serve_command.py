"""``pelton serve``: a NATS server on a store, for any NATS client.

The flags are those of nats-server, where they mean the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Final

from pelton.api import ConfigError
from pelton.api.durations import parse_duration
from pelton.api.keys import key_bytes
from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.runtime import Runtime, Signal, system_runtime
from pelton.server import Endpoint, Server, ServerSettings, StoreSettings, TlsDoor, WebSocketDoor, tls_context

_ACCOUNT: Final = "$G"
_UNITS: Final = {"K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30}


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.description = __doc__
    parser.add_argument("store", nargs="?", metavar="STORE", help="the file of the store; created if it is missing")
    parser.add_argument("-sd", "--store_dir", metavar="FOLDER", help="a folder for the stores, in place of STORE")
    parser.add_argument("-a", "--addr", "--net", default="127.0.0.1", metavar="HOST", help="(default 127.0.0.1)")
    parser.add_argument("-p", "--port", type=int, default=4222, help="-1 for any free one (default 4222)")
    parser.add_argument("-m", "--http_port", type=int, metavar="PORT", help="reports over HTTP, as GET /varz")
    parser.add_argument("--unix", metavar="PATH", help="listen on a Unix socket as well")
    parser.add_argument("-n", "--name", "--server_name", default="", help="the server's name")
    parser.add_argument("--domain", default="", help="the JetStream domain")
    parser.add_argument("--sync", choices=("commit", "interval", "off"), default="commit", help="(default commit)")
    parser.add_argument("--max_payload", type=_size, default=1 << 20, metavar="SIZE", help="(default 1MB)")
    parser.add_argument("--max_pending", type=_size, default=64 << 20, metavar="SIZE", help="(default 64MB)")
    parser.add_argument("--max_connections", type=int, default=65_536, metavar="NUMBER", help="(default 65536)")
    parser.add_argument("--ping_interval", type=_seconds, default=120.0, metavar="TIME", help="(default 2m)")
    parser.add_argument("--lame_duck_duration", type=_seconds, default=120.0, metavar="TIME", help="(default 2m)")
    parser.add_argument("--lame_duck_grace_period", type=_seconds, default=10.0, metavar="TIME", help="(default 10s)")
    parser.add_argument("--websocket_port", type=int, metavar="PORT", help="listen for WebSocket clients as well")
    parser.add_argument("--tls", action="store_true", help="require TLS; implied by --tlscert")
    parser.add_argument("--tlscert", default="", metavar="FILE", help="the server's certificate")
    parser.add_argument("--tlskey", default="", metavar="FILE", help="its key")
    parser.add_argument("--tlscacert", default="", metavar="FILE", help="the authority of clients' certificates")
    parser.add_argument("--tlsverify", action="store_true", help="clients must show a certificate")
    parser.add_argument("-js", "--jetstream", action="store_true", help="always on; for starters that ask for it")
    parser.add_argument("-t", "--check", action="store_true", help="check the settings, and do not serve")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return 0."""
    settings = _settings(options)
    if options.check:
        write_line("the settings are valid", error=True)
        return 0
    return asyncio.run(_serve(settings, system_runtime()))


def _settings(options: argparse.Namespace) -> ServerSettings:
    endpoints = [Endpoint(host=options.addr, port=options.port)]
    if options.unix:
        endpoints.append(Endpoint(path=options.unix))
    key = key_of(options)
    if (options.store is None) == (options.store_dir is None):
        raise ConfigError("serve: give the file of a store, or a folder for stores with -sd")
    path = options.store or os.path.join(options.store_dir, f"{_ACCOUNT}.pelton")
    if options.store_dir is not None:
        os.makedirs(options.store_dir, exist_ok=True)
    store = StoreSettings(path=path, sync=options.sync, key=None if key is None else key_bytes(key))
    tls, port = _tls(options), options.websocket_port
    websocket = None if port is None else WebSocketDoor(host=options.addr, port=port, tls=tls, compression=True)
    return ServerSettings(
        stores={_ACCOUNT: store},
        endpoints=tuple(endpoints),
        tls=tls,
        websocket=websocket,
        monitoring=None if options.http_port is None else Endpoint(host=options.addr, port=options.http_port),
        server_name=options.name,
        domain=options.domain,
        max_payload=options.max_payload,
        max_pending=options.max_pending,
        max_connections=options.max_connections,
        ping_interval=options.ping_interval,
        lame_duck_duration=options.lame_duck_duration,
        lame_duck_grace_period=options.lame_duck_grace_period,
    )


def _tls(options: argparse.Namespace) -> TlsDoor | None:
    given = (options.tls, options.tlscert, options.tlskey, options.tlscacert, options.tlsverify)
    if not any(given):
        return None
    if not (options.tlscert and options.tlskey):
        raise ConfigError("serve: TLS needs both --tlscert and --tlskey")
    verify = options.tlsverify
    context = tls_context(options.tlscert, options.tlskey, ca_file=options.tlscacert, verify=verify)
    return TlsDoor(context=context, verify=verify)


async def _serve(settings: ServerSettings, runtime: Runtime) -> int:
    loop, over, is_lame = asyncio.get_running_loop(), Signal(), False

    def lame_duck() -> None:
        nonlocal is_lame
        is_lame = True
        over.notify()

    seen = over.generation
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.notify)
    loop.add_signal_handler(signal.SIGUSR2, lame_duck)
    server = Server(settings, runtime)
    server.on_failure(over.notify)
    await server.start()
    try:
        for endpoint in server.endpoints:
            write_line(f"Listening for client connections on {endpoint}", error=True, flush=True)
        if server.websocket_endpoint is not None:
            scheme = "ws" if settings.tls is None else "wss"
            address = f"{scheme}://{server.websocket_endpoint}"
            write_line(f"Listening for websocket clients on {address}", error=True, flush=True)
        if server.monitoring_endpoint is not None:
            write_line(f"Starting http monitor on {server.monitoring_endpoint}", error=True, flush=True)
        write_line("Server is ready", error=True, flush=True)
        seen = await over.wait(seen)
        if is_lame:
            duck = runtime.spawn(server.lame_duck(), "pelton lets its clients go")
            await _first_of(duck, runtime, over, seen)
    finally:
        await server.close()
    if server.failure is None:
        return 0
    write_line(f"pelton: {server.failure}", error=True)
    return 1


async def _first_of(duck: asyncio.Task[None], runtime: Runtime, over: Signal, seen: int) -> None:
    """Wait until all clients have left, or for another signal."""
    again = runtime.spawn(_signalled(over, seen), "pelton waits for another signal")
    await asyncio.wait([duck, again], return_when=asyncio.FIRST_COMPLETED)
    for task in (duck, again):
        task.cancel()
    await asyncio.gather(duck, again, return_exceptions=True)


async def _signalled(over: Signal, seen: int) -> None:
    await over.wait(seen)


def _size(text: str) -> int:
    """Return bytes: a number, or one with a unit, such as ``8MB``."""
    digits = text.rstrip("KMGBkmgb")
    unit = text[len(digits) :].upper()
    if not digits.isdecimal() or (unit and unit not in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give bytes, or a number with K, M or G")
    return int(digits) * _UNITS.get(unit, 1)


def _seconds(text: str) -> float:
    """Return seconds: a number, or a duration such as ``2m`` or ``500ms``."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_duration(text) / 1e9
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
