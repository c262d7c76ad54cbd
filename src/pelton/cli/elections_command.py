"""``pelton elections``: who leads."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.stores import define_verb
from pelton.cli.tables import ago_text, write_json, write_table
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _elections)
    parser.add_argument("election", nargs="?", default="", metavar="ELECTION", help="with --bucket: the key in it")
    parser.add_argument("--bucket", default="", metavar="BUCKET", help="an election in a bucket of another name")


async def _elections(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.election_summaries(jet, options.bucket, options.election)
    if options.election and not options.bucket:
        found = [one for one in found if one.election == options.election]
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (one.election, one.leader or "(nobody)", one.token, ago_text(one.since, now), ago_text(one.renewed_at, now),
         f"{one.ttl:g} s", one.bucket)
        for one in found
    ]  # fmt: skip
    heads = ("election", "leader", "token", "leads for", "renewed", "term", "bucket")
    write_table(heads, rows, empty="no elections")
