"""``pelton info``: a store or cluster as a whole."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.stores import define_verb, is_file
from pelton.cli.tables import size_text, write_facts, write_json
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _info)


async def _info(jet: Jet, options: argparse.Namespace) -> None:
    path = options.store if is_file(options.store) else ""
    store = await observe.store_summary(jet, path)
    if options.json:
        write_json(store)
        return
    write_facts(
        options.store if path else "cluster",
        {
            "streams": store.streams,
            "consumers": store.consumers,
            "messages": store.messages,
            "size of messages": size_text(store.bytes),
            "queues": store.queues,
            "buckets": store.buckets,
            "object stores": store.object_stores,
            "file": size_text(store.file_bytes) if path else "",
            "log": size_text(store.log_bytes) if path else "",
        },
    )
