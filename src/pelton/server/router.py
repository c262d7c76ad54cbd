"""Which clients get a message: subscriptions by subject, and one member of each queue group.

A message is encoded once for all its subscribers; only the id of the subscription differs. What a subject leads to is
remembered until a subscription that it matches is made or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from pelton.subjects import SubjectIndex, has_wildcard

_REMEMBERED: Final = 65_536


class MessageFrame:
    """One message on its way to many subscriptions: what stands before and behind the subscription's id."""

    __slots__ = ("_bare", "_full", "data", "has_headers", "head", "size", "tail")

    def __init__(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        name, back = subject.encode(), f" {reply} ".encode() if reply else b" "
        self._bare = (b"MSG %b " % name, b"%b%d\r\n%b\r\n" % (back, len(data), data))
        self.has_headers = block is not None
        self._full = self._bare
        if block is not None:
            size = len(block) + len(data)
            self._full = (b"HMSG %b " % name, b"%b%d %d\r\n%b%b\r\n" % (back, len(block), size, block, data))

    def parts(self, headers: bool) -> tuple[bytes, bytes]:
        """Return both parts for a client that understands headers, or does not."""
        return self._full if headers else self._bare


class Receiver(Protocol):
    """A client: takes messages for its subscriptions, and may refuse a subject."""

    echo: bool

    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None: ...
    def may_receive(self, subject: str) -> bool: ...
    @property
    def room(self) -> int: ...


class ClientSubscription:
    """One subscription of a client. ``is_cut``: some of its messages may not reach it, so each is checked."""

    __slots__ = ("client", "is_cut", "limit", "queue", "received", "sid", "subject")

    def __init__(self, client: Receiver, sid: bytes, subject: str, queue: str, *, is_cut: bool = False) -> None:
        self.client = client
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self.is_cut = is_cut
        self.limit = 0
        self.received = 0


class _Targets(NamedTuple):
    plain: tuple[ClientSubscription, ...]
    groups: tuple[tuple[ClientSubscription, ...], ...]


class Router:
    """The subscriptions of one account's clients. ``choose`` picks a member of a queue group."""

    def __init__(self, choose: Callable[[Sequence[ClientSubscription]], ClientSubscription]) -> None:
        self._choose = choose
        self._index: SubjectIndex[ClientSubscription] = SubjectIndex()
        self._known: dict[str, _Targets] = {}

    def __len__(self) -> int:
        return len(self._index)

    def add(self, subscription: ClientSubscription) -> None:
        """Add a subscription."""
        self._index.insert(subscription.subject, subscription)
        self._forget(subscription.subject)

    def remove(self, subscription: ClientSubscription) -> None:
        """Remove a subscription."""
        self._index.remove(subscription.subject, subscription)
        self._forget(subscription.subject)

    def _forget(self, subject: str) -> None:
        if has_wildcard(subject):
            self._known.clear()
        else:
            self._known.pop(subject, None)

    def subscriptions(self, subject: str) -> tuple[ClientSubscription, ...]:
        """Return the subscriptions that match a subject."""
        return self._index.match(subject)

    def has_subscriber(self, subject: str, queue: str | None = None) -> bool:
        """Whether a subscription matches a subject: any, or one of a queue group ("" for none)."""
        found = self._targets(subject)
        if queue is None:
            return bool(found.plain or found.groups)
        return bool(found.plain) if not queue else any(group[0].queue == queue for group in found.groups)

    def deliver(
        self, route: str, frame: MessageFrame, origin: Receiver | None = None, *, queue: str | None = None
    ) -> int:
        """Deliver a message to the subscriptions that match ``route``; return how many clients got it.

        With ``queue`` only to that group's members, or with "" only to those of no group.
        """
        found = self._known.get(route) or self._targets(route)
        count = 0
        if not queue:
            for one in found.plain:
                if (one.client is not origin or origin.echo) and not (one.is_cut and not one.client.may_receive(route)):
                    one.client.deliver(one, frame)
                    count += 1
        if queue == "" or not found.groups:
            return count
        for group in found.groups:
            if queue is None or group[0].queue == queue:
                count += self._deliver_to_one(route, group, frame, origin)
        return count

    def _deliver_to_one(
        self, route: str, group: Sequence[ClientSubscription], frame: MessageFrame, origin: Receiver | None
    ) -> int:
        fit = [
            one
            for one in group
            if (one.client is not origin or origin.echo) and not (one.is_cut and not one.client.may_receive(route))
        ]
        if not fit:
            return 0
        one = fit[0] if len(fit) == 1 else self._choose(fit)
        one.client.deliver(one, frame)
        return 1

    def _targets(self, subject: str) -> _Targets:
        found = self._known.get(subject)
        if found is None:
            found = self._found(subject)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def _found(self, subject: str) -> _Targets:
        plain: list[ClientSubscription] = []
        groups: dict[str, list[ClientSubscription]] = {}
        # A subject with the character of a wildcard matches a filter that has it there in two ways.
        for one in dict.fromkeys(self._index.match(subject)):
            if one.queue:
                groups.setdefault(one.queue, []).append(one)
            else:
                plain.append(one)
        return _Targets(tuple(plain), tuple(tuple(group) for group in groups.values()))
