"""``pelton sql``: read a store file with SQL, on one snapshot, while others write."""

from __future__ import annotations

import argparse
import sys

from pelton.cli.stores import define_verb
from pelton.cli.tables import Cell, write_json, write_table
from pelton.cli.values import duration
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _sql)
    parser.add_argument("statement", nargs="?", metavar="STATEMENT", help="default, or -: standard input")
    parser.add_argument("--timeout", type=duration, default=60.0, metavar="TIME", help="default 60s")


async def _sql(jet: Jet, options: argparse.Namespace) -> None:
    statement = sys.stdin.read() if options.statement in (None, "-") else options.statement
    async with jet.read(timeout=options.timeout) as view:
        rows = await view.sql(statement)
    if options.json:
        write_json([[value.hex() if isinstance(value, bytes) else value for value in row] for row in rows])
        return
    write_table(None, [[_cell(value) for value in row] for row in rows], empty="no rows")


def _cell(value: object) -> Cell:
    if isinstance(value, bytes):
        return f"x'{value[:40].hex()}'" + ("..." if len(value) > 40 else "")
    if value is None:
        return "NULL"
    return value if isinstance(value, str | int | float) else str(value)
