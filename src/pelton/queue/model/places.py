"""Places: how jobs that are scheduled or unique are found, and never stored twice. Pure.

Such a job has a *leaf*, one token at the end of its subject. While it waits for its time it is a schedule, at another
subject with the same leaf; both match one filter, so the condition that nothing is stored under that filter makes a job
unique from the moment it is enqueued until it has ended, because the queue's stream then removes it.

The message of a scheduled job is stored again when it falls due, with another sequence, so its id is not its sequence:
it is the leaf, a number that no other job of the leaf has, and its key or the token of its tenant, from which its
subjects follow::

    leaf[-number][@key]

So what is unique is unique for its tenant.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pelton.queue.model.naming import as_token, of_token

if TYPE_CHECKING:
    from pelton.queue.model.options import JobOptions

_FRESH: Final = "s"
_UNIQUE: Final = "u"
_REDRIVEN: Final = "r"
_CRON: Final = "c"
_FLOW: Final = "f"
_MOVED: Final = "m"
_DIGEST_BYTES: Final = 15


class Place(NamedTuple):
    """Where a job is kept: its leaf, its id (empty: the sequence of its message), and whether no other may be there."""

    leaf: str
    id: str
    is_unique: bool


def place_of(job: str, args: bytes, options: JobOptions, key: str, new_id: str) -> Place:
    """Return the place of a job with options; ``key`` is the part of its subject, ``new_id`` an id nobody has."""
    if options.is_unique:
        leaf = unique_leaf(job, args, options)
        return Place(leaf, _id(f"{leaf}-{new_id}", key) if options.is_later else "", is_unique=True)
    leaf = _FRESH + new_id
    return Place(leaf, _id(leaf, key), is_unique=False)


def unique_leaf(job: str, args: bytes, options: JobOptions) -> str:
    """Return the leaf of a unique job."""
    return _UNIQUE + _digest(*_what_is_unique(job, args, options))


def redriven_place(job_id: str, key: str) -> Place:
    """Return the place of a failed job that is redriven: always the same, so that repeating it stores nothing."""
    leaf = _REDRIVEN + _digest("redriven", job_id)
    return Place(leaf, _id(leaf, key), is_unique=True)


def flow_place(flow: str, node: int, generation: int, key: str) -> Place:
    """Return the place of a node of a flow: always the same. ``generation`` counts how often it was taken back."""
    leaf = _FLOW + _digest("flow", flow, str(node), str(generation))
    return Place(leaf, _id(leaf, key), is_unique=True)


def moved_place(queue: str, job_id: str, leaf: str, key: str) -> Place:
    """Return the place, in another queue, of a job of ``queue``: always the same. A unique job keeps its ``leaf``."""
    if not leaf.startswith(_UNIQUE):
        leaf = _MOVED + _digest("moved", queue, job_id)
        return Place(leaf, _id(leaf, key), is_unique=True)
    return Place(leaf, _id(f"{leaf}-{_digest('moved', queue, job_id)}", key), is_unique=True)


def cron_leaf(schedule: str) -> str:
    """Return the leaf of the jobs of a schedule, by its name."""
    return _CRON + _digest("schedule", schedule)


def _what_is_unique(job: str, args: bytes, options: JobOptions) -> tuple[str, ...]:
    if options.id:
        return "id", options.id
    if options.unique == "arguments":
        named = msgspec.json.decode(args)
        # Keyword arguments may have come in another order.
        text = msgspec.json.encode(named, order="deterministic").decode()
        return "arguments", job, options.key, text
    if options.unique == "key":
        return "key", options.key
    return "text", options.unique


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _id(leaf: str, key: str) -> str:
    return f"{leaf}@{as_token(key)}" if key else leaf


class WhereFound(NamedTuple):
    """Where to look for a job: its leaf, and its key in its subject form."""

    leaf: str
    key: str


def found_by(job_id: str) -> WhereFound:
    """Return where the job of an id is that is not a sequence."""
    name, _, key = job_id.partition("@")
    return WhereFound(name.partition("-")[0], of_token(key))
