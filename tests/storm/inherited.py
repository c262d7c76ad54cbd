"""What a storm finds in the store that it begins on, which an earlier version wrote: it works that off, too."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import pelton
from pelton.storage import SCHEMA_VERSION
from tests.stores.write import FLOWS, HERE, KEY_RANKS

VERSIONS: Final = range(1, SCHEMA_VERSION + 1)
_NOTE: Final = "inherited"
# No job that was there before may end as a dead letter, however often its workers are killed.
_ATTEMPTS: Final = 1000
_HOURLY: Final = 26


def unpack(version: int, path: Path) -> None:
    """Write the kept store of a schema to ``path``."""
    path.write_bytes(lzma.decompress((HERE / f"schema-{version}.pelton.xz").read_bytes()))
    (path.parent / _NOTE).write_text(str(version))


def version_in(folder: Path) -> int:
    """Return the schema of the store that the storm began on; 0 for a new one."""
    note = folder / _NOTE
    return int(note.read_text()) if note.exists() else 0


def queues_in(folder: Path) -> list[str]:
    """Return the queues that the store had before."""
    version = version_in(folder)
    return [*(["mail", "garage"] if version else []), *(["plant"] if version >= FLOWS else [])]


async def opened(jet: pelton.Jet, name: str) -> pelton.Queue:
    """Open one of these queues, with the jobs that it knows."""
    queue = await jet.queue(name)

    @queue.job(max_attempts=_ATTEMPTS)
    async def send(n: int) -> int:
        return n

    @queue.job(max_attempts=_ATTEMPTS)
    async def hang(n: int) -> int:
        return n

    return queue


async def take_over(jet: pelton.Jet, folder: Path) -> None:
    """Stop what would never end."""
    if version_in(folder) >= FLOWS:
        await (await jet.queue("mail")).unschedule("hourly")


def expected(version: int) -> Mapping[str, Sequence[int]]:
    """Return the results of all jobs of the store, those from before included."""
    if not version:
        return {}
    is_younger, has_ranks = version >= FLOWS, version >= KEY_RANKS
    found = {
        "mail": [*range(2), *range(3, 9), *(range(20, 26) if is_younger else ())],
        "garage": [*range(6), *range(7, 10), *((20,) if has_ranks else ()), *((21, 22) if is_younger else ())],
    }
    return found | ({"plant": [1, 1, 3]} if is_younger else {})


def contradictions(version: int, ended: Mapping[str, Sequence[pelton.Outcome]]) -> Iterator[str]:
    """Yield what has become otherwise of the jobs that were there before."""
    for name, results in expected(version).items():
        completed = sorted(
            msgspec.json.decode(outcome.result) for outcome in ended[name] if outcome.state == "completed"
        )
        if name == "mail" and completed[-1:] == [_HOURLY]:
            # One run was due.
            completed.pop()
        if completed != sorted(results):
            yield f"{name} of schema {version}: {completed} are completed, and not {sorted(results)}"
        failed = sum(outcome.state == "failed" for outcome in ended[name])
        if failed != (name != "plant"):
            yield f"{name} of schema {version}: {failed} have failed"


async def left(jet: pelton.Jet, version: int) -> list[str]:
    """Return what lacks of the streams and buckets that were there before."""
    found: list[str] = []
    if version:
        state = (await (await jet.stream("orders")).info()).state
        if (state.messages, state.first_seq, state.last_seq) != (9, 1, 10):
            found.append(f"orders of schema {version}: {state.messages} from {state.first_seq} to {state.last_seq}")
        config = await jet.bucket("config")
        colours = [entry.value for entry in await config.history("colour")]
        if colours != [b"red", b"green", b"blue"]:
            found.append(f"config of schema {version}: {colours}")
        if await (await jet.objects("files")).get("report") != b"line\n" * 60_000:
            found.append(f"files of schema {version}: the report is another one")
    return found
