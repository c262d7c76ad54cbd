"""Advisories: events get an id and a time, and are dropped if they have no recipient.

An event waits in an outbox until its transaction commits, so a rolled-back transaction sends none. Recipients are
checked first: an event that no subscriber or stream receives costs one look-up and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pelton.api import Outgoing, rfc3339
from pelton.api.events import Event, encode_event


class Advisories:
    """Sends the events of one store."""

    def __init__(
        self,
        is_heard: Callable[[str], bool],
        tell: Callable[[Outgoing], None],
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._has_recipient = is_heard
        self._dispatch = tell
        self._now = now
        self._new_id = new_id

    def send(self, event: Event) -> None:
        """Send an event when the open transaction commits, if it has a recipient."""
        subject = event.subject
        if self._has_recipient(subject):
            event = msgspec.structs.replace(event, id=self._new_id(), timestamp=rfc3339(self._now()))
            self._dispatch(Outgoing(subject, encode_event(event)))
