"""``pelton copy``: a store or cluster, or some of its streams, to another one."""

from __future__ import annotations

import argparse
import asyncio

from pelton.api.keys import KeyFile
from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.cli.progress import Bar
from pelton.cli.tables import write_json, write_table
from pelton.moving import CopyReport, copy


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("source", metavar="SOURCE", help="a store file, or an address such as nats://host:4222")
    parser.add_argument("target", metavar="TARGET", help="the same; a file is created if it is missing")
    parser.add_argument("--stream", action="append", metavar="NAME", help="only this stream (may be repeated)")
    parser.add_argument(
        "--replicas", type=int, metavar="N", help="from a file to a cluster: keep each stream on N servers (default: 1)"
    )
    parser.add_argument("--target-key-file", metavar="FILE", help="the target's key, if it is an encrypted file")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Copy; return 0 when the copy is complete, and the same as the original."""
    with Bar("copying") as bar:
        report = asyncio.run(_copied(options, bar))
    if options.json:
        write_json(report)
        return 0
    rows = [
        (one.name, one.messages, one.last_seq, len(one.consumers), one.checksum, "was there" if one.was_there else "")
        for one in report.streams
    ]
    heads = ("stream", "messages", "last sequence", "consumers", "checksum", "")
    write_table(heads, rows, empty="no streams")
    for text in report.lost:
        write_line(f"not kept: {text}")
    return 0


async def _copied(options: argparse.Namespace, bar: Bar) -> CopyReport:
    target_key = None if options.target_key_file is None else KeyFile(options.target_key_file)

    def told(stream: str, done: int, total: int) -> None:
        bar.show(done, total, stream)

    return await copy(
        options.source,
        options.target,
        streams=options.stream,
        key=key_of(options),
        target_key=target_key,
        num_replicas=options.replicas,
        progress=told,
    )
