"""The store of a command: a file or an address, as the first argument after the verb or in ``PELTON_STORE``."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pelton.api import ConfigError
from pelton.cli.keys import add_key, key_of
from pelton.connect import Jet
from pelton.connect import open as open_store

VARIABLE: Final = "PELTON_STORE"

Verb = Callable[[Jet, argparse.Namespace], Awaitable[int | None]]


def is_file(store: str) -> bool:
    """Whether a store is a file, and no address of a cluster."""
    return os.path.exists(store) or ":" not in store


def add_verb(verbs: Any, name: str, verb: Verb, text: str, *, writes: bool = False) -> argparse.ArgumentParser:
    """Add a verb of a command group, with the arguments that all of them have."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    define_verb(parser, verb, writes=writes)
    return parser


def define_verb(parser: argparse.ArgumentParser, verb: Verb, *, writes: bool = False) -> None:
    """Add the arguments that all verbs have; a verb that does not write opens a file to be read alone."""
    parser.add_argument(
        "store", metavar="STORE", help=f"a store file, or an address such as nats://host:4222 (or in {VARIABLE})"
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    add_key(parser)
    parser.set_defaults(run=run, verb=verb, writes=writes)


def add_create(parser: argparse.ArgumentParser) -> None:
    """Add the option to create the file of the store."""
    parser.add_argument("--create", action="store_true", help="create the store file if it is missing")


def run(options: argparse.Namespace) -> int:
    """Open the store and run the verb on it; return the exit status."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    async with opened(options, writes=options.writes) as jet:
        return await options.verb(jet, options) or 0


def opened(options: argparse.Namespace, *, writes: bool) -> Any:
    """Return the opening of the store. Raises ConfigError if it is a file that does not exist."""
    store = options.store
    if not is_file(store):
        return open_store(store)
    if not os.path.exists(store) and not getattr(options, "create", False):
        raise ConfigError(f"{store}: no such file")
    if writes:
        return open_store(store, key=key_of(options))
    return open_store(store, key=key_of(options), read_only=True)


def with_store(words: Sequence[str], depth: int, store: str) -> list[str]:
    """Return the words of a command line with ``store`` after the verb, unless they name one there.

    A word names a store if it is an address, ends in ``.pelton``, or is the path of a file in another folder.
    """
    given = words[depth] if len(words) > depth else ""
    if given in ("-h", "--help") or _names_store(given):
        return list(words)
    return [*words[:depth], store, *words[depth:]]


def _names_store(word: str) -> bool:
    is_address = "://" in word or word.startswith("context:")
    return is_address or word.endswith(".pelton") or (os.sep in word and os.path.isfile(word))
