"""Commands for locks and elections: ``pelton locks``, ``elections``, ``elect``.

``pelton elect`` runs candidates in processes that elect a leader, for you to watch and kill. It takes the variables of
the demo of nats-kv-leader-elect: NOSPLAY=1 for candidates that begin at once, CONTEXT for the ``nats context`` of the
cluster; it can share its bucket and key with candidates of that library.
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

from pelton import observe
from pelton.api import BucketNotFoundError
from pelton.api.wording import age_text
from pelton.cli.arguments import JSON, TABLE, declare, option, store_command
from pelton.cli.candidates import CandidatePool, CandidateProcess, CandidateSettings
from pelton.cli.output import pressed_keys, write_found, write_json_line, write_line, write_styled
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.runtime import Clock, Signal, system_runtime


@store_command("locks")
@TABLE
async def _locks(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.lock_summaries(jet)
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "kind, name, slot, holder, token, held for, renewed, ttl, waiting",
        lambda one: (one.kind, one.name, str(one.slot) if one.kind == "semaphore" else "", one.holder, one.token,
                     age_text(one.since, now), age_text(one.renewed_at, now), f"{one.ttl:g} s", one.waiting),
        empty="no lock is held",
        drop="slot, ttl, renewed",
    )  # fmt: skip


@store_command("elections")
@TABLE
@option("[ELECTION]", "with --bucket: the key in it", default="")
@option("--bucket BUCKET", "an election in a bucket of another name", default="")
async def _elections(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.election_summaries(jet, options.bucket, options.election)
    if options.election and not options.bucket:
        found = [one for one in found if one.election == options.election]
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "election, leader, token, leads for, renewed, term, bucket",
        lambda one: (one.election, one.leader or "(nobody)", one.token, age_text(one.since, now),
                     age_text(one.renewed_at, now), f"{one.ttl:g} s", one.bucket),
        empty="no elections",
        drop="bucket, term, renewed",
    )  # fmt: skip


# --- the display of an election: on a terminal a table that is overwritten, otherwise lines

_HELP: Final = "k: kill the leader   d: let it step down   q: end"
_STYLES: Final = {"leader": "\x1b[1;32m", "killed": "\x1b[1;31m", "failed": "\x1b[1;31m", "gone": "\x1b[31m"}
_UP: Final = "\x1b[{}F\x1b[J"


def rows(members: list[CandidateProcess], now: float) -> list[tuple[str, str]]:
    """Return the table's lines, each with its style."""
    width = max(len(member.settings.name) for member in members)
    head = f"{'candidate':<{width}}  {'process':>8}  {'state':<10} {'for':>8}  {'token':>7}  {'terms':>5}  note"
    lines = [(head, "")]
    for member in members:
        token = str(member.token) if member.state == "leader" else ""
        text = (
            f"{member.settings.name:<{width}}  {member.pid or '':>8}  {member.state:<10} {now - member.since:>6.1f} s"
            f"  {token:>7}  {member.terms:>5}  {member.note}"
        )
        lines.append((text[:118], _STYLES.get(member.state, "")))
    return lines


class CandidateTable:
    """A table on a terminal."""

    def __init__(self) -> None:
        self._height = 0

    def show(self, members: list[CandidateProcess], now: float) -> None:
        """Overwrite the previous table."""
        lines = [*rows(members, now), ("", ""), (_HELP, "")]
        over = _UP.format(self._height) if self._height else ""
        self._height = len(lines)
        write_styled(lines, over)


_TTL_S: Final = 5.0
_STRICT_TTL_S: Final = 31.0
_SPLAY: Final = 0.75
_REFRESH_S: Final = 0.5


@declare("elect", description=__doc__.partition("\n\n")[2])
@option("[ADDRESS]", "a store's file or a cluster (default: a new file)")
@option("--bucket BUCKET", "created if missing (default DEMO_ELECTION)", default="DEMO_ELECTION")
@option("--key KEY", "the key of the election (default demo)", default="demo")
@option("--candidates N", "processes (default 3)", default=3)
@option("--name NAME", "the candidates' name, followed by a number (default worker)", default="worker")
@option("--ttl SECONDS", f"the term (default: the bucket's, or {_TTL_S:g})")
@option("--strict", "terms of 30 s to 1 h, as nats-kv-leader-elect has them")
@option("--for SECONDS", "end after this time", dest="seconds")
@option("--kill-every SECONDS", "kill the leader repeatedly, at this interval")
@JSON
def run_elect(options: argparse.Namespace) -> int:
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
    on_terminal = sys.stdout.isatty() and sys.stdin.isatty() and not options.json
    clock = runtime.clock
    begin = clock.monotonic()

    def tell(text: str) -> None:
        at = clock.monotonic() - begin
        if options.json:
            write_json_line({"at": round(at, 3), "text": text})
        elif not on_terminal:
            write_line(f"{at:8.3f}  {text}", flush=True)

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
            stack.enter_context(pressed_keys(loop.add_reader, lambda key: pressed.get(key, show)()))
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
