"""What streams say again (republish), and what the store itself says, on its way into the streams that take it.

A stream's own words wait in its ``outbox`` while messages are appended to it. Before anything else is appended to
another stream they are stored there (:func:`catch_up`), so that a stream which takes both what is published and what
is said again has them in the order in which they would come, published one after the other; the rest is handed on when
the transaction ends (``Catalogue.flush``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from pelton.api import ApiError, Outgoing
from pelton.streams import StreamLog, is_bare, is_member

if TYPE_CHECKING:
    from pelton.engine.catalogue import Catalogue


def catch_up(catalogue: Catalogue, log: StreamLog) -> None:
    """Store what other streams have said so far; ``log`` is written to next."""
    said: list[Outgoing] = []
    for sayer in catalogue.sayers:
        if sayer is not log and (republished := sayer.state.effects.republished):
            said += republished
            republished.clear()
    if said:
        hand_on(catalogue, said)


def hand_on(catalogue: Catalogue, messages: Sequence[Outgoing]) -> None:
    """Tell messages of the store's own, and store each in the stream that takes its subject, if there is one."""
    if catalogue.bus.listening:
        catalogue.bus.tell(messages)
    logs = {subject: catalogue.route(subject) for subject in {message[0] for message in messages}}
    if not any(logs.values()):
        return
    now = catalogue.now()
    for log, group in groupby(messages, lambda message: logs[message[0]]):
        if log is not None:
            for bare, run in groupby(group, lambda message: is_bare(message[2])):
                if bare and catalogue.use(log).appender.is_plain:
                    log.appender.append_plain(run, now)
                else:
                    _store(catalogue, log, run, now)


def _store(catalogue: Catalogue, log: StreamLog, messages: Iterable[Outgoing], now: int) -> None:
    catalogue.use(log)
    for message in messages:
        subject, data, headers = message
        # Nobody waits for the answer: what a stream refuses is lost to it, as on a NATS server.
        with suppress(ApiError):
            if is_member(headers):
                catalogue.staging.take(log, message, now)
            else:
                log.appender.append(subject, headers, data, now)
