"""Commands that look at a store or cluster: ``pelton info``, ``metrics``, ``dashboard``."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pelton import observe
from pelton.api import ConfigError, PeltonError
from pelton.api.times import SECOND
from pelton.api.wording import bytes_text, moment_text, span_text, text_for_people, without_login
from pelton.cli.arguments import (
    JSON,
    KEY,
    STORE_VARIABLE,
    TABLE,
    declare,
    is_file,
    opening_of,
    option,
    port,
    store_command,
    until_stopped,
)
from pelton.cli.output import plain, write_done, write_facts, write_found, write_json, write_line, write_line_as_is
from pelton.connect import Jet
from pelton.observe.alarms import hub_silence
from pelton.runtime.processes import StopSignals
from pelton.storage import LeafNote, StandbyLag

if TYPE_CHECKING:
    from pelton.dashboard.access import AccessToken

_BETWEEN_LOOKS_S: Final = 0.3


@store_command("info")
async def _info(jet: Jet, options: argparse.Namespace) -> None:
    path = options.store if is_file(options.store) else ""
    store = await observe.store_summary(jet, path)
    if store.writer_pid:
        # Who writes for a moment has ended by the second look.
        await jet.runtime.clock.sleep(_BETWEEN_LOOKS_S)
        store = await observe.store_summary(jet, path)
    streams, queues = await observe.stream_summaries(jet), await observe.queue_summaries(jet)
    alarms = observe.alarms_of(await observe.health_facts(jet, path, queues, streams))
    write_facts(
        options,
        plain(store) | {"alarms": [alarm._asdict() for alarm in alarms]},
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
            **{f"hub {hub.url}": _hub_text(hub, jet.runtime.clock.now()) for hub in store.hubs},
            **{f"standby {one.standby}": _lag_text(one) for one in store.standbys},
            "alarms": len(alarms) or "none: all is well",
        },
        [f"  ! {f'queue {alarm.queue}: ' if alarm.queue else ''}{alarm.text}" for alarm in alarms],
    )


def _hub_text(hub: LeafNote, now: int) -> str:
    if quiet := hub_silence(hub, now):
        return f"no process is its leaf node: process {hub.pid} told so last {span_text(quiet)} ago"
    if not hub.connected_ns:
        return "not connected"
    since = span_text((now - hub.connected_ns) // SECOND)
    return f"connected for {since}, rtt {hub.rtt * 1e3:.1f} ms, {hub.in_msgs} messages in, {hub.out_msgs} out"


def _lag_text(lag: StandbyLag) -> str:
    lacks = "" if lag.messages is None else f"{lag.messages:,} messages, "
    return f"behind {'its store' if lag.messages is None else ''} {lacks}{span_text(lag.seconds)}".replace("  ", " ")


@store_command("metrics")
@option("--host ADDRESS", "where to listen (default: 127.0.0.1)", default="127.0.0.1")
@option("--port N", "default 7777; 0: any that is free", type=port, default=7777)
@option("--once", "print the metrics and end")
@option("--internals", "also the consumers by which queues, locks and elections work")
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


@store_command("audit")
@TABLE
@option("--limit N", "at most so many, the newest (default 50)", default=50)
async def _audit(jet: Jet, options: argparse.Namespace) -> None:
    write_found(
        options,
        [entry for _, entry in await observe.audit_entries(jet, limit=options.limit)],
        "when, who, from, action, on, result",
        lambda one: (moment_text(one.at), one.who or "somebody without a token", f"{one.origin}, {one.source}",
                     one.action, one.target, f"failed: {text_for_people(one.error)}" if one.error else one.result),
        empty="nothing was done yet",
    )  # fmt: skip


# --- ``pelton dashboard``: a live page on a store or cluster, for a browser

TOKEN: Final = "PELTON_DASHBOARD_TOKEN"
_FIRST_QUEUES: Final = 20


@declare("dashboard")
@option(
    "STORE...",
    f"a store file, or an address such as nats://host:4222 (or in {STORE_VARIABLE}); several: one page for all",
)
@option("--prefix PATH", "where a proxy shows the page, such as /pelton", default="")
@option("--host ADDRESS", "where to listen (default: 127.0.0.1, the only without token)", default="127.0.0.1")
@option("--port N", "default 8333; 0: any that is free", type=port, default=8333)
@option("--token TEXT", f"what viewers must give; in {TOKEN}, other users of the machine cannot see it")
@option("--tokens FILE", "a file of tokens, NAME ROLE TOKEN a line; ROLE is look, act or administer")
@option("--allow-actions", "let viewers cancel, redrive, pause, purge, publish; a token allows it, too")
@option("--read-only", "no actions, whatever else is given")
@JSON
@KEY
def run_dashboard(options: argparse.Namespace) -> int:
    """Serve the page until SIGTERM or SIGINT."""
    tokens = _tokens(options)
    if not tokens and not _is_loopback(options.host):
        raise ConfigError(f"dashboard: {options.host} can be reached by others; give a --token, or --tokens")
    return asyncio.run(_serve(options, tokens, (bool(tokens) or options.allow_actions) and not options.read_only))


def _tokens(options: argparse.Namespace) -> list[AccessToken]:
    """Return the tokens that viewers may give. Raises ConfigError."""
    from pelton.dashboard.access import AccessToken, tokens_of

    token = options.token or os.environ.get(TOKEN, "")
    alone = [AccessToken("token", "administer", token)] if token else []
    if options.tokens is None:
        return alone
    try:
        with open(options.tokens, encoding="utf-8") as file:
            return [*alone, *tokens_of(file.read())]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"dashboard: the tokens in {options.tokens} cannot be read: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve(options: argparse.Namespace, tokens: Sequence[AccessToken], actions: bool) -> int:
    try:
        from pelton.dashboard.app import DashboardServer, DashboardSwitch
    except ImportError as error:
        raise ConfigError(f"the dashboard needs {error.name}: pip install 'pelton[dashboard]'") from None
    shown = f"[{options.host}]" if ":" in options.host else options.host
    # Without a token, the name of the host is what keeps other sites' scripts out.
    hosts = () if tokens else {shown, "127.0.0.1", "localhost", "[::1]"}
    async with AsyncExitStack() as stack:
        apps = await _apps(stack, options, {"tokens": tokens, "actions": actions, "hosts": hosts})
        with _listening(options.host, options.port) as listener:
            server = DashboardServer(DashboardSwitch(apps, options.prefix), listener)
            signals = StopSignals(server.stop)
            signals.take()
            try:
                url = f"http://{shown}:{listener.getsockname()[1]}{options.prefix}/"
                write_done(options, {"url": url}, f"The dashboard is at {url}")
                await server.serve()
            finally:
                signals.give_back()
    return 0


async def _apps(stack: AsyncExitStack, options: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dashboards of all stores, by the names under which they are found. Raises ConfigError."""
    from pelton.dashboard.app import ONLY, app

    stores = {os.path.basename(without_login(one)): one for one in options.store}
    if len(stores) < len(options.store):
        raise ConfigError("dashboard: two of the stores have the same name: show them on two pages")
    is_alone, apps = len(stores) == 1, {}
    for name, store in stores.items():
        place = argparse.Namespace(store=store, key_file=options.key_file)
        jet = await stack.enter_async_context(opening_of(place, writes=settings["actions"], patient=False))
        prefix = options.prefix if is_alone else f"{options.prefix}/{quote(name, safe='')}"
        path, others = store if is_file(store) else "", () if is_alone else tuple(stores)
        if is_alone and not path:
            name = without_login(store)
        apps[ONLY if is_alone else name] = app(jet, prefix=prefix, path=path, name=name, stores=others, **settings)
        await _look_around(jet)
    return apps


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
