"""A client as a member of an account: as which user, with which rights and limits, and what it subscribes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pelton.server.accounts import smallest_limit
from pelton.server.auth import ServerUser
from pelton.server.auth import identity as said
from pelton.server.auth.identity import ClientRights
from pelton.server.ports import AccountPort, Client
from pelton.server.router import ClientSubscription
from pelton.subjects import is_filter
from pelton.wire import Sub

_AT_ONCE: Final = 64


class Membership:
    """What one client is and has in its account; ``account`` and ``user`` are None before it is let in."""

    rights: ClientRights
    max_payload: int

    def __init__(self) -> None:
        self.account: AccountPort | None = None
        self.user: ServerUser | None = None
        self.rights = ClientRights(ServerUser())
        self.max_payload = self._max_subscriptions = -1
        self.subscriptions: dict[bytes, ClientSubscription] = {}

    def enter(self, client: Client, user: ServerUser, account: AccountPort, max_subscriptions: int) -> str:
        """Become a user of an account; ``max_subscriptions`` is the server's own limit (0: none).

        Returns why it is refused, or an empty text.
        """
        if account is not self.account:
            if account.usage.is_full():
                return said.MAX_ACCOUNT_CONNECTIONS
            self.leave(client)
            account.join(client)
        limits = user.limits
        self.user, self.account, self.rights = user, account, ClientRights(user)
        self.max_payload = smallest_limit(limits.max_payload, account.usage.limits.max_payload)
        self._max_subscriptions = smallest_limit(
            max_subscriptions or -1, limits.max_subscriptions, account.usage.limits.max_subscriptions
        )
        return ""

    def leave(self, client: Client) -> None:
        """Leave the account, with all subscriptions."""
        if self.account is not None:
            left, self.subscriptions = self.subscriptions, {}
            self.account.leave(client, left)

    @property
    def is_limited(self) -> bool:
        """Whether what the client publishes has to be checked: most clients have no limits of their own."""
        return self.rights.permissions is not None

    # --- subscriptions

    def objection(self, command: Sub) -> str:
        """Return why the client may not subscribe so, or an empty text."""
        assert self.account is not None
        if not is_filter(command.subject):
            # An id that has a subscription keeps it, whatever else is asked for under it.
            return "" if command.sid in self.subscriptions else "Invalid Subject"
        if not self.rights.may_subscribe(command.subject, command.queue):
            return said.subscription_violation(command.subject, command.queue)
        is_full = 0 <= self._max_subscriptions <= len(self.subscriptions)
        return said.MAX_SUBSCRIPTIONS if is_full and command.sid not in self.subscriptions else ""

    @property
    def has_too_many(self) -> bool:
        """Whether the client has more subscriptions than it may have by now."""
        return 0 <= self._max_subscriptions < len(self.subscriptions)

    def subscribe(self, client: Client, command: Sub) -> None:
        """Subscribe, unless the client does so already under this id."""
        sid, subject, queue = command.sid, command.subject, command.queue
        if self.account is not None and sid not in self.subscriptions:
            is_cut = self.rights.is_cut(subject, queue)
            one = self.subscriptions[sid] = ClientSubscription(client, sid, subject, queue, is_cut=is_cut)
            self.account.subscribe(one)

    def drop(self, one: ClientSubscription) -> None:
        """End a subscription. Idempotent."""
        if self.subscriptions.pop(one.sid, None) is not None and self.account is not None:
            self.account.unsubscribe(one)

    async def drop_forbidden(self, tell: Callable[[str], None]) -> None:
        """End what the client may no longer subscribe to, so many in a round of the event loop, and tell it of each."""
        subscriptions = list(self.subscriptions.values())
        for one in subscriptions:
            # Its messages are checked until all of it is.
            one.is_cut = True
        for count, one in enumerate(subscriptions, start=1):
            if self.subscriptions.get(one.sid) is one:
                one.is_cut = self.rights.is_cut(one.subject, one.queue)
                if not self.rights.may_subscribe(one.subject, one.queue):
                    self.drop(one)
                    tell(said.subscription_violation(one.subject, one.queue))
            if not count % _AT_ONCE:
                await asyncio.sleep(0)
