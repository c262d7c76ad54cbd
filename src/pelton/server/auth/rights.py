"""What one client may do now: its user's permissions, and the requests that it may still answer. Pure."""

from __future__ import annotations

from collections import OrderedDict

from pelton.server.auth.identity import ServerUser
from pelton.server.auth.permissions import Permissions

_MOST_ANSWERS = 4096


class ClientRights:
    """The rights of a client; times are seconds of one monotonic clock."""

    def __init__(self, user: ServerUser) -> None:
        self.permissions: Permissions | None = user.permissions
        self.answers: bool = self.permissions is not None and self.permissions.responses != 0
        """Whether requests have to be noted, because the client may answer them."""
        self._open: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def may_publish(self, subject: str, now: float) -> bool:
        """Whether the client may publish to a subject, or answer a request there; an answer is counted."""
        if self.permissions is None or self.permissions.publish.allows(subject):
            return True
        left, until = self._open.get(subject, (0, 0.0))
        if not left or (until and now > until):
            self._open.pop(subject, None)
            return False
        self._open[subject] = (left - 1 if left > 0 else left, until)
        return True

    def may_subscribe(self, filter: str, queue: str) -> bool:
        """Whether the client may subscribe."""
        return self.permissions is None or self.permissions.subscribe.allows_filter(filter, queue)

    def is_cut(self, filter: str, queue: str) -> bool:
        """Whether each message of a subscription has to be checked."""
        return self.permissions is not None and self.permissions.subscribe.cuts(filter, queue)

    def may_receive(self, subject: str, queue: str) -> bool:
        """Whether a subscription that is cut receives a message."""
        return self.permissions is None or self.permissions.subscribe.receives(subject, queue)

    def expect_answer(self, reply: str, now: float) -> None:
        """Let the client answer a request that it received."""
        if self.permissions is None or not reply:
            return
        self._open.pop(reply, None)
        if len(self._open) >= _MOST_ANSWERS:
            # The oldest request has waited longest, and expires first.
            self._open.popitem(last=False)
        seconds = self.permissions.response_s
        self._open[reply] = (self.permissions.responses, now + seconds if seconds else 0.0)
