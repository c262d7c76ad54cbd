"""Messages that no publisher waits for, on their way: those that streams republish, and the store's own.

What a stream republishes waits in its effects while messages are appended to it. Before anything else is appended to
another stream they are stored there (:func:`catch_up`), so that a stream which takes both what is published and what
is republished has them in the order in which they would come, published one after the other; the rest is dispatched
when the transaction ends (``Session.flush``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Protocol

from pelton.api import ApiError, Outgoing
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session.registry import Registry
from pelton.streams import Staging, StreamLog, is_bare, is_member


class Dispatcher(Protocol):
    """The session whose messages these are."""

    @property
    def bus(self) -> Bus: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def staging(self) -> Staging: ...
    @property
    def now(self) -> Callable[[], int]: ...


def catch_up(session: Dispatcher, log: StreamLog) -> None:
    """Store what other streams have republished so far; ``log`` is written to next."""
    waiting: list[Outgoing] = []
    for republisher in session.registry.republishers:
        if republisher is not log and (republished := republisher.state.effects.republished):
            waiting += republished
            republished.clear()
    if waiting:
        dispatch(session, waiting)


def dispatch(session: Dispatcher, messages: Sequence[Outgoing]) -> None:
    """Deliver messages to subscribers, and store each in the stream that takes its subject, if there is one."""
    registry = session.registry
    if session.bus.has_subscriptions:
        session.bus.publish(messages)
    logs = {subject: registry.route(subject) for subject in {message[0] for message in messages}}
    if not any(logs.values()):
        return
    now = session.now()
    for log, group in groupby(messages, lambda message: logs[message[0]]):
        if log is not None:
            for bare, run in groupby(group, lambda message: is_bare(message[2])):
                if bare and registry.use(log).appender.is_plain:
                    log.appender.append_plain(run, now)
                else:
                    _store(session, log, run, now)


def _store(session: Dispatcher, log: StreamLog, messages: Iterable[Outgoing], now: int) -> None:
    session.registry.use(log)
    for message in messages:
        subject, data, headers = message
        # Nobody waits for the answer: what a stream refuses is lost to it, as on a NATS server.
        with suppress(ApiError):
            if is_member(headers):
                session.staging.take(log, message, now)
            else:
                log.appender.append(subject, headers, data, now)
