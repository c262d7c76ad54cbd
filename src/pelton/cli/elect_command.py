"""``pelton elect``: candidates in processes that elect a leader, for you to watch and kill.

It takes the variables of the demo of nats-kv-leader-elect: NOSPLAY=1 for candidates that begin at once, CONTEXT for the
``nats context`` of the cluster; it can share its bucket and key with candidates of that library.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from pelton.api import BucketNotFoundError
from pelton.cli.elect.candidate import CandidateSettings
from pelton.cli.elect.candidate_pool import CandidatePool
from pelton.cli.elect.table import CandidateTable, keys
from pelton.cli.output import write_line
from pelton.cli.values import count
from pelton.connect import open as open_store
from pelton.runtime import Clock, Signal, system_runtime

_TTL_S: Final = 5.0
_STRICT_TTL_S: Final = 31.0
_SPLAY: Final = 0.75
_REFRESH_S: Final = 0.5


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.description = __doc__
    parser.add_argument(
        "address", nargs="?", metavar="ADDRESS", help="a store's file or a cluster (default: a new file)"
    )
    parser.add_argument("--bucket", default="DEMO_ELECTION", help="created if missing (default DEMO_ELECTION)")
    parser.add_argument("--key", default="demo", help="the key of the election (default demo)")
    parser.add_argument("--candidates", type=count, default=3, metavar="N", help="processes (default 3)")
    parser.add_argument("--name", default="worker", help="the candidates' name, followed by a number (default worker)")
    parser.add_argument("--ttl", type=float, metavar="SECONDS", help=f"the term (default: the bucket's, or {_TTL_S:g})")
    parser.add_argument("--strict", action="store_true", help="terms of 30 s to 1 h, as nats-kv-leader-elect has them")
    parser.add_argument("--for", type=float, dest="seconds", metavar="SECONDS", help="end after this time")
    parser.add_argument(
        "--kill-every", type=float, metavar="SECONDS", help="kill the leader repeatedly, at this interval"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the election; return 0 unless a candidate could not take part."""
    with ExitStack() as stack:
        address = options.address or _context()
        if address is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pelton-elect-"))
            address = str(Path(folder) / "election.pelton")
        return asyncio.run(_elect(options, address))


def _context() -> str | None:
    name = os.environ.get("CONTEXT")
    if not name:
        return None
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return f"context:{home / 'nats' / 'context' / f'{name}.json'}"


async def _elect(options: argparse.Namespace, address: str) -> int:
    everybody = _everybody(options, address, await _term(options, address))
    runtime, over, table = system_runtime(), Signal(), CandidateTable()
    on_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    clock = runtime.clock
    begin = clock.monotonic()

    def tell(text: str) -> None:
        if not on_terminal:
            write_line(f"{clock.monotonic() - begin:8.3f}  {text}", flush=True)

    def show() -> None:
        if on_terminal:
            table.show(crew.members, clock.monotonic())
        if crew.failure:
            over.notify()

    crew = CandidatePool(everybody, runtime, tell, show)
    seen = over.generation
    pressed = {"k": crew.kill_leader, "d": crew.step_down, "q": over.notify}
    with ExitStack() as stack:
        if on_terminal:
            loop = asyncio.get_running_loop()
            stack.enter_context(keys(loop.add_reader, lambda key: pressed.get(key, show)()))
            _every(runtime.clock, _REFRESH_S, show)
        if options.kill_every:
            _every(runtime.clock, options.kill_every, crew.kill_leader)
        if options.seconds is not None:
            clock.call_later(options.seconds, over.notify)
        await crew.begin()
        try:
            await over.wait(seen)
        finally:
            await crew.end()
    if crew.failure:
        write_line(f"pelton elect: {crew.failure}", error=True)
    return 1 if crew.failure else 0


async def _term(options: argparse.Namespace, address: str) -> float:
    """Return the bucket's TTL, creating the bucket if it is missing."""
    async with open_store(address) as jet:
        try:
            status = await (await jet.bucket(options.bucket)).status()
        except BucketNotFoundError:
            ttl = options.ttl or (_STRICT_TTL_S if options.strict else _TTL_S)
            bucket = await jet.create_bucket(options.bucket, ttl=ttl, limit_marker_ttl=max(ttl, 1.0))
            status = await bucket.status()
        return status.ttl


def _everybody(options: argparse.Namespace, address: str, ttl: float) -> list[CandidateSettings]:
    return [
        CandidateSettings(
            address=address,
            bucket=options.bucket,
            key=options.key,
            name=f"{options.name} {number}",
            ttl=options.ttl,
            splay=0.0 if os.environ.get("NOSPLAY") == "1" else ttl * _SPLAY,
            strict=options.strict,
        )
        for number in range(1, options.candidates + 1)
    ]


def _every(clock: Clock, seconds: float, what: Callable[[], None]) -> None:
    def again() -> None:
        what()
        clock.call_later(seconds, again)

    clock.call_later(seconds, again)
