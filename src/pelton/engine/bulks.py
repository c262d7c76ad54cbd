"""Many small messages of many callers, made ready before the writer is held: one bulk a family of subjects.

Records of jobs and the like have subjects that differ in their last token alone, an id: one look tells the stream of
all of them. What is no family, or lies in a stream that has to look at each message, is appended one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pelton.api import Outgoing
from pelton.engine.catalogue import Catalogue
from pelton.engine.works import make_ready
from pelton.streams import Bulk, bulk_of
from pelton.subjects import is_subject

_MANY: Final = 16


class Family(NamedTuple):
    """Messages whose subjects are ``parent`` and one more token."""

    parent: str
    bulk: Bulk


def families_of(messages: Sequence[Outgoing]) -> list[Family]:
    """Return messages as families, in order within each; none where they are few, or not all fit into one."""
    if len(messages) < _MANY:
        return []
    members: dict[str, tuple[list[str], list[bytes]]] = {}
    tokens: list[str] = []
    for subject, data, block in messages:
        parent, _, token = subject.rpartition(".")
        if block is not None or not parent:
            return []
        found = members.get(parent)
        if found is None:
            found = members[parent] = [], []
        found[0].append(subject)
        found[1].append(data)
        tokens.append(token)
    if len(members) * _MANY > len(messages) or not all(map(is_subject, (".".join(tokens), *members))):
        return []
    return [Family(parent, bulk_of(*columns)) for parent, columns in members.items()]


def store_families(catalogue: Catalogue, families: Sequence[Family], now: int) -> bool:
    """Store families, all or none: False where one of them is no matter of one stream that takes bulks."""
    if not families or catalogue.bus.listening:
        return False
    logs = [catalogue.family(parent) for parent, _ in families]
    if not all(log is not None and log.takes_bulk for log in logs):
        return False
    for log, (_, bulk) in zip(logs, families, strict=True):
        assert log is not None
        make_ready(catalogue, log, now)
        log.store_bulk(bulk, now)
    return True
