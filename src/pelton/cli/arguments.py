"""How commands declare what they take, and its kinds: values, a store and its key, a queue, a port."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import platform
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from pelton.api import ConfigError, PeltonError
from pelton.api.keys import Key, KeyFile, key_bytes
from pelton.api.times import SECOND, parse_rfc3339
from pelton.api.wording import text_for_people
from pelton.cli.output import write_line
from pelton.runtime import Signal
from pelton.runtime.processes import StopSignals

if TYPE_CHECKING:
    from pelton.connect import Jet
    from pelton.observe.audit import AuditEntry
    from pelton.queue import Queue

_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w|y)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
STANDARD: Final = "-"
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound="Verb")


def duration(text: str) -> float:
    """Return the seconds of a text such as ``90``, ``1h30m``, ``500ms`` or ``7d``."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PARTS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write it as 90, 1h30m, 500ms or 7d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def moment_of(text: str, now: int, sign: int) -> int:
    """Return wall nanoseconds: so long before ``now`` (``sign`` -1) or after it (1), or of RFC 3339 text.

    Raises ConfigError.
    """
    try:
        return now + sign * int(duration(text) * SECOND)
    except argparse.ArgumentTypeError:
        try:
            return parse_rfc3339(text)
        except ValueError:
            raise ConfigError(f"{text!r} is no time: write 1h30m, or 2026-01-31T12:00:00Z") from None


def size(text: str) -> int:
    """Return the bytes of a text such as ``1024``, ``64K`` or ``10GiB``; -1 is no limit."""
    if text == "-1":
        return -1
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 1024, 64K or 10GiB")
    return int(float(found[1]) * _FACTORS[found[2].upper()])


def count(text: str) -> int:
    """Return a whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def header(text: str) -> tuple[str, str]:
    """Return the name and the value of a header such as ``Name: value``."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no header: write it as 'Name: value'")
    return name.strip(), value.strip()


def fields_of(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a configuration that options of the same names give."""
    given = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def parts_of(texts: Sequence[str] | None) -> list[str]:
    """Return what an option holds that may be repeated, and have several values by comma."""
    return [one for text in texts or () for one in text.split(",") if one]


def payload_of(text: str | None) -> bytes:
    """Return the payload that an argument gives; without one, or for ``-``, standard input."""
    if text is None or text == STANDARD:
        return sys.stdin.buffer.read()
    return text.encode()


# --- a store's key for the commands: from a file, or the environment; never from an argument, which others may see

KEY_VARIABLE: Final = "PELTON_KEY"


def key_of(options: argparse.Namespace) -> Key | None:
    if options.key_file is not None:
        return KeyFile(options.key_file)
    return os.environ.get(KEY_VARIABLE) or None


def _file(text: str) -> str:
    if "://" in text or text.startswith("context:"):
        raise argparse.ArgumentTypeError(f"{text} is an address, and this is for a store file: its server cares for it")
    return text


# --- declarations of commands: above the function that does it, its name, its places, and its options


_KINDS: Final[dict[str, Callable[[str], Any]]] = {"N": count, "SIZE": size, "SECONDS": float, "TIME": duration}
"""How values are read, by what help calls them, if their options do not say it."""


class Arguments:
    """Arguments of a command, which declare them above its function, below the command: in the order of its help."""

    def __init__(self, add: Callable[[Any], object]) -> None:
        self.add = add

    def __call__(self, function: F) -> F:
        function.__dict__.setdefault("arguments", []).insert(0, self)
        return function


def option(words: str, text: str | None = None, **settings: Any) -> Arguments:
    """Return an option such as ``-n --count N``, or a place: ``NAME``, ``[OPTIONAL]``, ``REPEATED...``.

    One without a value is a switch; ``settings`` are what argparse takes besides.
    """
    *names, value = words.split()
    given: dict[str, Any] = {"help": text}
    if value.startswith("-"):
        names.append(value)
        if not settings.keys() & {"action", "choices", "metavar"}:
            given["action"] = "store_true"
    elif "choices" not in settings:
        given["metavar"] = value if names else value.strip("[.]")
    if not names:
        names = [settings.pop("dest", value.strip("[.]").lower())]
        given["nargs"] = ("*" if value[0] == "[" else "+") if "..." in value else "?" if value[0] == "[" else None
    if given.get("metavar") in _KINDS:
        given["type"] = _KINDS[given["metavar"]]
    return Arguments(lambda parser: parser.add_argument(*names, **given | settings))


def together(*each: Arguments) -> Arguments:
    """Return arguments that several commands have."""
    return Arguments(lambda parser: [one.add(parser) for one in each])


def one_of(*each: Arguments, required: bool = False) -> Arguments:
    """Return options of which a command line has one, or at most one."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        together(*each).add(group)

    return Arguments(add)


JSON: Final = option("--json", "write JSON, for programs")
KEY: Final = option("--key-file FILE", f"the store's key (or in the variable {KEY_VARIABLE})")
WIDE: Final = option("--wide", "all columns and texts, however narrow the terminal is")
TABLE: Final = together(
    WIDE, option("--sort COLUMN", "by a column, numbers from the greatest; --sort=-COLUMN the other way", default="")
)
"""The options of what shows a list."""
NAMES: Final = option("-n --names", "only their names")
FORCE: Final = option("-f --force", "do it, without asking")
CREATE: Final = option("--create", "create the store file if it is missing")
RAW: Final = option("--raw", "write the payloads alone, as they are")
FILTERS: Final = together(option("--key KEY", "only jobs of this key"), option("--job NAME", "only jobs of this name"))


def declare(
    words: str,
    text: str = "",
    *,
    description: str | None = None,
    formatter: type[argparse.HelpFormatter] = argparse.HelpFormatter,
    before: Sequence[Arguments] = (),
    after: Sequence[Arguments] = (),
    aliases: Sequence[str] = (),
    **defaults: Any,
) -> Callable[[F], F]:
    """Declare a command such as ``copy SOURCE TARGET`` or ``kv get BUCKET KEY``, with its ``text`` if it is a verb.

    Its places are required, ``[OPTIONAL]``, or ``REPEATED...``; ``before`` and ``after`` are arguments around those of
    its function, ``defaults`` what the options hold besides.
    """
    command, *places = words.split()
    verb = places.pop(0) if text else ""

    def decorate(function: F) -> F:
        def add(parser: argparse.ArgumentParser) -> None:
            if verb:
                verbs = verbs_of(parser) or [parser.add_subparsers(title="verbs", required=True, metavar="VERB")]
                parser = verbs[0].add_parser(verb, help=text, description=text, aliases=aliases)
            parser.description, parser.formatter_class = description or parser.description, formatter
            for one in (*before, *map(_place, places), *getattr(function, "arguments", ()), *after):
                one.add(parser)
            parser.set_defaults(run=function, command=f"{command} {verb}".rstrip())
            parser.set_defaults(**defaults)

        function.__dict__["declared"] = command, add
        return function

    return decorate


def define(parser: argparse.ArgumentParser, name: str, module: ModuleType) -> None:
    """Add to the parser of a command what the functions of its module declare for it, in their order."""
    for function in vars(module).values():
        declared = getattr(function, "declared", None)
        if declared and declared[0] == name:
            declared[1](parser)


def _place(words: str) -> Arguments:
    return option(words, "a store file", type=_file) if words == "STORE" else option(words)


def verbs_of(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    """Return what holds the verbs of a command, or the commands of all, if there are some."""
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


# --- the store of a command: a file or an address, as the first argument after the verb or in ``PELTON_STORE``

STORE_VARIABLE: Final = "PELTON_STORE"

Verb: TypeAlias = "Callable[[Jet, argparse.Namespace], Awaitable[int | None]]"


def is_file(store: str) -> bool:
    """Whether a store is a file, and no address of a cluster."""
    return os.path.exists(store) or ":" not in store


_STORE: Final = option("STORE", f"a store file, or an address such as nats://host:4222 (or in {STORE_VARIABLE})")
_TABLES: Final = ("ls", "keys", "tenants", "errors")


def store_command(
    words: str, text: str = "", *, writes: bool = False, aliases: Sequence[str] = (), **defaults: Any
) -> Callable[[V], V]:
    """Declare a command on an opened store, :func:`declare`; one that does not write opens a file to be read alone."""
    before = [_STORE, JSON, KEY, *([TABLE] if text and words.split()[1] in _TABLES else ())]

    def decorate(function: V) -> V:
        given = {"run": run, "verb": function, "writes": writes, **defaults}
        return declare(words, text, before=before, aliases=aliases, **given)(function)

    return decorate


def file_command(words: str) -> Callable[[F], F]:
    """Declare a command that cares for a store file, :func:`declare`."""
    return declare(words, after=(KEY, JSON))


def run(options: argparse.Namespace) -> int:
    """Open the store and run the verb on it; return the exit status."""
    try:
        return asyncio.run(_run(options))
    except BrokenPipeError:
        raise
    except OSError as error:
        write_line(f"pelton: {error}", error=True)
        return 1


_LOOK_S: Final = 1.5
"""How long a command that only looks tries to reach a cluster, or waits for one that was lost."""


async def _run(options: argparse.Namespace) -> int:
    async with opening_of(options, writes=options.writes) as jet:
        if not options.writes or options.command in _DATA_COMMANDS:
            return await options.verb(jet, options) or 0
        return await _run_audited(jet, options)


_DATA_COMMANDS: Final = frozenset(
    {"pub", "sub", "request", "consumer next", "kv put", "kv watch", "object put", "jobs add", "jobs wait"}
)
"""Commands that work with data as programs do, and administer nothing."""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return f"uid {os.getuid()}"


async def _run_audited(jet: Jet, options: argparse.Namespace) -> int:
    """Run a verb that administers, and write to the audit what it did."""
    from pelton.observe.audit import record_action

    entry = _entry_of(options)
    try:
        status = await options.verb(jet, options) or 0
    except PeltonError as error:
        await record_action(jet, msgspec.structs.replace(entry, error=text_for_people(error)))
        raise
    done: str = getattr(options, "done", "")
    # If the answer to its question was no, it did nothing.
    if done or not status:
        await record_action(jet, msgspec.structs.replace(entry, result=done))
    return status


def _entry_of(options: argparse.Namespace) -> AuditEntry:
    from pelton.observe.audit import AuditEntry

    target = list(options.words[len(options.command.split()) :])
    if "store" in options:
        target.remove(options.store)
    return AuditEntry(
        who=_user(), source="command", origin=platform.node(), action=options.command, target=shlex.join(target)
    )


async def record_command(options: argparse.Namespace, store: str) -> None:
    """Write to the audit of a store file what a command has done to it; one of an older schema is left as it is."""
    from pelton.connect import open as open_store
    from pelton.engine.upkeep import public_faults
    from pelton.observe.audit import record_action
    from pelton.storage import SCHEMA_VERSION, ReadOnlyDatabase

    # Opening it to write would migrate it, and an older Pelton that has it open could not go on.
    with public_faults(), closing(ReadOnlyDatabase(store, key=key_bytes(key_of(options)))) as found:
        if found.value("PRAGMA user_version") != SCHEMA_VERSION:
            return
    async with open_store(store, key=key_of(options)) as jet:
        done: str = getattr(options, "done", "")
        await record_action(jet, msgspec.structs.replace(_entry_of(options), result=done))


def opening_of(options: argparse.Namespace, *, writes: bool, patient: bool | None = None) -> Any:
    """Return the opening of the store. Raises ConfigError if it is a file that does not exist.

    ``patient``: whether it waits for a cluster that was lost; None: if it ``writes``, or goes on.
    """
    # Here, because the commands that need no streams start without it.
    from pelton.connect import open as open_store

    store = options.store
    if not is_file(store):
        waits = (writes or getattr(options, "follow", False)) if patient is None else patient
        return open_store(store) if waits else open_store(store, patience=_LOOK_S)
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


# --- what the commands about queues have in common: the queue itself, and the jobs they take


async def queue_of(jet: Jet, options: argparse.Namespace) -> Queue:
    """Return the queue, which exists. Raises QueueNotFoundError, ConfigError."""
    return await jet.queue(options.queue, create=False)


async def of_queues(
    jet: Jet, options: argparse.Namespace, ask: Callable[[Jet, str], Awaitable[Sequence[T]]]
) -> list[tuple[str, T]]:
    """Return what is found in the queue of the options, or in each queue if they name none, with the queue's name.

    One of all queues that cannot be looked at is told on standard error, and hides no other.
    """
    if options.queue:
        return [(options.queue, one) for one in await ask(jet, options.queue)]
    found: list[tuple[str, T]] = []
    for name in await jet.queue_names():
        try:
            found += [(name, one) for one in await ask(jet, name)]
        except PeltonError as error:
            write_line(f"pelton: queue {name}: {error}", error=True)
    return found


def check_choice(options: argparse.Namespace, *filters: str) -> None:
    """Check that a verb for many says which: their ids, filters, or all. Raises ConfigError."""
    filtered = any(getattr(options, name) is not None for name in filters)
    given = bool(options.id) + filtered + options.all
    if given != 1:
        named = ", ".join(f"--{name}" for name in filters)
        only = ", only one of these" if given else ""
        raise ConfigError(f"say which: their IDs, or a filter ({named}), or --all{only}")


def filter_text(options: argparse.Namespace) -> str:
    """Return what the filters select, as the end of a sentence."""
    chosen = {name: getattr(options, name, None) for name in ("state", "key", "job", "tenant")}
    return "".join(f" with {name} {value}" for name, value in chosen.items() if value is not None)


# --- what commands that listen on a port share


def port(text: str) -> int:
    """Return the number of a port; 0 is any that is free."""
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number up to 65535")
    return number


async def until_stopped() -> None:
    """Wait for SIGTERM or SIGINT."""
    loop, over = asyncio.get_running_loop(), Signal()
    seen = over.generation
    signals = StopSignals(lambda: loop.call_soon_threadsafe(over.notify))
    signals.take()
    try:
        await over.wait(seen)
    finally:
        signals.give_back()
