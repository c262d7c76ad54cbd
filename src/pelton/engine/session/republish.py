"""Dispatches messages that no publisher waits for: what streams republish, and the store's own messages.

Republished messages wait in their stream's effects while messages are appended to it. They are stored before anything
else is appended to another stream (:meth:`Dispatcher.catch_up`). So a stream that takes both published and republished
messages has them in the same order as if each had been published by itself. The rest is dispatched when the
transaction ends (``Session.flush``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

from pelton.api import ApiError, Outgoing
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session.registry import Registry
from pelton.streams import Staging, StreamLog, is_bare, is_member


class Dispatcher:
    """Dispatches the messages of one session to the subscribers of ``bus`` and the streams of ``registry``."""

    def __init__(self, registry: Registry, bus: Bus, staging: Staging, now: Callable[[], int]) -> None:
        self._registry = registry
        self._bus = bus
        self._staging = staging
        self._now = now

    def catch_up(self, log: StreamLog) -> None:
        """Store what other streams have republished so far, before ``log`` is written to."""
        waiting: list[Outgoing] = []
        for republisher in self._registry.republishers:
            if republisher is not log and (republished := republisher.state.effects.republished):
                waiting += republished
                republished.clear()
        if waiting:
            self.dispatch(waiting)

    def dispatch(self, messages: Sequence[Outgoing]) -> None:
        """Deliver messages to subscribers, and store each in the stream that takes its subject, if there is one."""
        registry = self._registry
        if self._bus.has_subscriptions:
            # Messages that a server has passed on may be stored around these, which it has not.
            is_routed, self._bus.is_routed = self._bus.is_routed, False
            self._bus.publish(messages)
            self._bus.is_routed = is_routed
        logs = {subject: registry.route(subject) for subject in {message.subject for message in messages}}
        if not any(logs.values()):
            return
        now = self._now()
        for log, group in groupby(messages, lambda message: logs[message.subject]):
            if log is not None:
                for bare, run in groupby(group, lambda message: is_bare(message.headers)):
                    if bare and registry.use(log).appender.is_plain:
                        log.appender.append_plain(list(run), now)
                    else:
                        self._store(log, run, now)

    def _store(self, log: StreamLog, messages: Iterable[Outgoing], now: int) -> None:
        self._registry.use(log)
        for message in messages:
            # No publisher waits for an answer: a message that the stream refuses is lost to it, as on a NATS server.
            with suppress(ApiError):
                if is_member(message.headers):
                    self._staging.take(log, message, now)
                else:
                    log.appender.append(message.subject, message.headers, message.data, now)
