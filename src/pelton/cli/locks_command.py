"""``pelton locks``: who holds which lock."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.stores import define_verb
from pelton.cli.tables import ago_text, write_json, write_table
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _locks)


async def _locks(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.lock_summaries(jet)
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (one.kind, one.name, str(one.slot) if one.kind == "semaphore" else "", one.holder, one.token,
         ago_text(one.since, now), ago_text(one.renewed_at, now), f"{one.ttl:g} s", one.waiting)
        for one in found
    ]  # fmt: skip
    heads = ("kind", "name", "slot", "holder", "token", "held for", "renewed", "ttl", "waiting")
    write_table(heads, rows, empty="no lock is held")
