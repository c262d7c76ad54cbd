"""Prepares many small messages of many callers before the writer is held: one bulk per family of subjects.

Records of jobs and the like have subjects that differ only in their last token, an id: one lookup finds the stream of
all of them. Other messages, and those of a stream that must check each message, are appended one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final, NamedTuple

from pelton.api import Outgoing
from pelton.engine.session import Session
from pelton.engine.transactions.works import make_ready
from pelton.streams import Bulk, bulk_of
from pelton.subjects import are_tokens, is_subject

_MANY: Final = 16
# A subject with more characters is checked by itself: it may have more bytes than a subject can.
_LONG: Final = 512


class Family(NamedTuple):
    """Messages whose subjects are ``parent`` plus one token."""

    parent: str
    bulk: Bulk


def families_of(messages: Sequence[Outgoing]) -> list[Family]:
    """Return messages as families, each in order; an empty list if they are few, or if one fits no family."""
    if len(messages) < _MANY:
        return []
    subjects = [message.subject for message in messages]
    parents = [subject.rpartition(".")[0] for subject in subjects]
    known = dict.fromkeys(parents)
    if len(known) * _MANY > len(messages) or any(message.headers is not None for message in messages):
        return []
    tokens = [s[len(p) + 1 :] for s, p in zip(subjects, parents, strict=True)]
    if max(map(len, subjects)) > _LONG or not (all(map(is_subject, known)) and are_tokens(tokens)):
        return []
    payloads = [message.data for message in messages]
    if len(known) == 1:
        return [Family(parents[0], bulk_of(subjects, set(subjects), payloads))]
    return [Family(parent, _bulk_within(parent, parents, subjects, payloads)) for parent in known]


def _bulk_within(parent: str, parents: Sequence[str], subjects: Sequence[str], payloads: Sequence[bytes]) -> Bulk:
    mine = [one == parent for one in parents]
    chosen = list(compress(subjects, mine))
    return bulk_of(chosen, set(chosen), list(compress(payloads, mine)))


def store_families(session: Session, families: Sequence[Family], now: int) -> bool:
    """Store all families or none; return False if one does not belong to a single stream that takes bulks."""
    if not families or session.bus.has_subscriptions:
        return False
    logs = [session.registry.family(parent) for parent, _ in families]
    if not all(log is not None and log.appender.takes_bulk for log in logs):
        return False
    for log, (_, bulk) in zip(logs, families, strict=True):
        assert log is not None
        make_ready(session, log, now)
        log.bulk.append(bulk, now)
    return True
