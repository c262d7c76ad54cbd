"""What the commands about queues have in common: the queue itself, the ids and the filters they take."""

from __future__ import annotations

import argparse

from pelton.api import ConfigError
from pelton.connect import Jet
from pelton.queue import Queue


def add_queue(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the queue that a verb is about."""
    parser.add_argument("queue", metavar="QUEUE")
    return parser


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the filters by key and by the name of a job."""
    parser.add_argument("--key", metavar="KEY", help="only jobs of this key")
    parser.add_argument("--job", metavar="NAME", help="only jobs of this name")


async def queue_of(jet: Jet, options: argparse.Namespace) -> Queue:
    """Return the queue, which exists. Raises QueueNotFoundError, ConfigError."""
    return await jet.queue(options.queue, create=False)


def check_choice(options: argparse.Namespace, *filters: str) -> None:
    """Check that a verb for many says which: their ids, filters, or all. Raises ConfigError."""
    filtered = any(getattr(options, name) is not None for name in filters)
    if bool(options.id) + filtered + options.all != 1:
        named = ", ".join(f"--{name}" for name in filters)
        raise ConfigError(f"say which: their IDs, or a filter ({named}), or --all")


def filter_text(options: argparse.Namespace) -> str:
    """Return what the filters select, as the end of a sentence."""
    chosen = {name: getattr(options, name, None) for name in ("state", "key", "job", "tenant")}
    return "".join(f" with {name} {value}" for name, value in chosen.items() if value is not None)
