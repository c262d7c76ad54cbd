"""Where a message goes: which clients get it, by their subscriptions and queue groups, and how it is stored.

A message is encoded once for all its subscribers; only the id of the subscription differs. Subjects that lead to the
same subscriptions share what is remembered of that, until a subscription is made or ends.

**What clients publish to streams: all of one round of the event loop in one group, each answered when it is durable.**
While too much waits for the store, the clients that publish are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice, repeat
from typing import Final, NamedTuple, Protocol, TypeVar

from pelton.api import Delivered, Incoming, Outgoing, PeltonError, PubAck
from pelton.api.message import encode_pub_ack, encode_pub_error, replies_of
from pelton.engine.serving import Serving
from pelton.runtime import Signal
from pelton.subjects import SubjectIndex, has_wildcard
from pelton.subjects.match import LONGEST_CACHED
from pelton.wire import ConnectOptions, PubRun

_REMEMBERED: Final = 16_384
_SHARED_UP_TO: Final = 1024
_REMEMBERED_HEADS: Final = 8192
_T = TypeVar("_T")
_PORTION: Final = 256
# As many members of a group count at one hub.
_HEAVIEST: Final = 256


async def in_portions(items: Iterable[_T], at_once: int = _PORTION) -> AsyncIterator[list[_T]]:
    """Yield the next items together, and let clients have their turn after each time."""
    rest = iter(items)
    while some := list(islice(rest, at_once)):
        yield some
        await asyncio.sleep(0)


class MessageFrame:
    """One message on its way to many subscriptions: what stands before and behind the subscription's id."""

    __slots__ = ("_parts", "block", "data", "replies", "reply", "size", "subject")

    def __init__(self, subject: str, reply: str, block: bytes | None, data: bytes) -> None:
        self.subject: str = subject
        self.block: bytes | None = block or None
        self.data: bytes = data
        # By whether they are those with headers.
        self._parts: dict[bool, tuple[bytes, bytes]] = {}
        self.reply: str = reply
        self.replies: tuple[str] = (reply,)
        self.size: int = len(data) + len(block or b"")

    def parts(self, headers: bool) -> tuple[bytes, bytes]:
        """Return both parts for a client that understands headers, or does not."""
        block = self.block if headers else None
        is_full = block is not None
        found = self._parts.get(is_full)
        if found is None:
            head = b"H" + _head(self.subject) if is_full else _head(self.subject)
            found = self._parts[is_full] = head, tail_of(self.reply, block, self.data)
        return found


def tail_of(reply: str, block: bytes | None, data: bytes) -> bytes:
    """Return what follows the subscription's id in a message."""
    back = f" {reply}".encode() if reply else b""
    if not block:
        return b"%b %d\r\n%b\r\n" % (back, len(data), data)
    return b"%b %d %d\r\n%b%b\r\n" % (back, len(block), len(block) + len(data), block, data)


def _head(subject: str) -> bytes:
    return _short_head(subject) if len(subject) <= LONGEST_CACHED else f"MSG {subject} ".encode()


@lru_cache(_REMEMBERED_HEADS)
def _short_head(subject: str) -> bytes:
    return f"MSG {subject} ".encode()


class Receiver(Protocol):
    """A client: takes messages for its subscriptions, and may refuse a subject."""

    echo: bool
    options: ConnectOptions

    def deliver_run(self, subscription: ClientSubscription, run: bytes, size: int, replies: Sequence[str]) -> None: ...
    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None: ...
    def may_receive(self, subscription: ClientSubscription, subject: str) -> bool: ...
    def has(self, subscription: ClientSubscription) -> bool: ...
    def flush(self) -> None: ...
    def stop_reading(self) -> None: ...
    def read_again(self) -> None: ...
    @property
    def room(self) -> int: ...
    @property
    def reserve(self) -> int: ...


class ClientSubscription:
    """One subscription of a client. ``is_cut``: some of its messages may not reach it, so each is checked.

    ``known_to`` is the store that was told of it, if any.
    """

    __slots__ = ("client", "is_cut", "known_to", "limit", "queue", "received", "sid", "subject")

    def __init__(self, client: Receiver, sid: bytes, subject: str, queue: str, *, is_cut: bool = False) -> None:
        self.client: Receiver = client
        self.sid: bytes = sid
        self.subject: str = subject
        self.queue: str = queue
        self.is_cut: bool = is_cut
        self.known_to: object = None
        self.limit: int = 0
        self.received: int = 0


class Hub(Protocol):
    """A server that this one is a leaf node of (``leaf.py``)."""

    def forward(self, route: str, frame: MessageFrame, queues: Sequence[str]) -> bool:
        """Send a message, once, for whatever subscribes there, and these groups; return whether it may cross."""

    def may_publish(self, subject: str) -> bool:
        """Whether a message may cross."""


class HubSubscription(ClientSubscription):
    """What a hub wants; ``weight`` is how many members a group has there."""

    __slots__ = ("hub", "weight")

    def __init__(self, hub: Hub, client: Receiver, sid: bytes, subject: str, queue: str, weight: int) -> None:
        super().__init__(client, sid, subject, queue)
        self.hub: Hub = hub
        self.weight: int = weight


class Targets(NamedTuple):
    """The subscriptions that a subject leads to: plain ones, and the members of each queue group.

    ``only`` is the subscription if there is just one, a plain one; ``is_apart``: all are plain, each another client's.
    ``far`` are those of hubs: plain ones, and those of the groups that have no member here.
    """

    plain: tuple[ClientSubscription, ...]
    groups: tuple[tuple[ClientSubscription, ...], ...]
    any: bool
    only: ClientSubscription | None
    is_apart: bool
    far: tuple[HubSubscription, ...] = ()


class WideDelivery:
    """A message on its way to very many plain subscriptions: to some at a time, so that others have their turn."""

    def __init__(
        self, targets: Sequence[ClientSubscription], route: str, frame: MessageFrame, origin: Receiver
    ) -> None:
        self._targets = targets
        self._next = 0
        self._route = route
        self._frame = frame
        self._origin = origin

    def deliver(self, most: int) -> bool:
        """Deliver to the next ones that still subscribe; return whether there are more."""
        begin, self._next = self._next, self._next + most
        origin = self._origin
        for one in self._targets[begin : self._next]:
            client = one.client
            is_meant = client.has(one) and (client is not origin or origin.echo)
            if is_meant and not (one.is_cut and not client.may_receive(one, self._route)):
                client.deliver(one, self._frame)
        return self._next < len(self._targets)


def _deliver_alone(only: ClientSubscription, messages: Sequence[Delivered | Incoming]) -> None:
    """Deliver messages to one subscription, in one piece, as most pulls and pushes are."""
    takes_headers, head, subject, size = only.client.options.headers, b"", "", 0
    replies = replies_of(messages)
    # The line of each, and what it holds.
    parts: list[bytes] = []
    for one, reply in zip(messages, replies, strict=True):
        data, block = one.data, one.headers
        if one.subject != subject:
            subject = one.subject
            head = b"MSG %b %b " % (subject.encode(), only.sid)
        back = f"{reply} " if reply else ""
        if block and takes_headers:
            parts += (b"H" + head + f"{back}{len(block)} {len(block) + len(data)}".encode(), block + data)
        else:
            parts += (head + f"{back}{len(data)}".encode(), data)
        size += len(data) + (len(block) if block else 0)
    only.client.deliver_run(only, b"\r\n".join([*parts, b""]), size, replies)


NO_TARGETS: Final = Targets((), (), False, None, False)


class Router:
    """The subscriptions of one account's clients. ``choose`` picks a member of a queue group.

    ``leaving`` are those of clients that have left: nobody finds them, and they do not count.
    """

    inserted: int
    leaving: int

    def __init__(self, choose: Callable[[Sequence[ClientSubscription]], ClientSubscription]) -> None:
        self._choose = choose
        self._index: SubjectIndex[ClientSubscription] = SubjectIndex()
        # Many subjects lead to the same subscriptions.
        self._shared: dict[tuple[ClientSubscription, ...], Targets] = {}
        self.inserted = self.leaving = 0

    def __len__(self) -> int:
        return len(self._index) - self.leaving

    def add(self, subscription: ClientSubscription) -> None:
        self._index.insert(subscription.subject, subscription)
        self.inserted += 1
        self._shared.clear()

    def remove(self, subscription: ClientSubscription) -> None:
        self._index.remove(subscription.subject, subscription)
        self._shared.clear()

    def subscriptions(self, subject: str) -> tuple[ClientSubscription, ...]:
        found = self._index.match(subject)
        return tuple([one for one in found if one.client.has(one)]) if self.leaving else found

    def only_below(self, parent: str) -> ClientSubscription | None:
        """Return the only subscription, a plain one, that subjects of ``parent`` and one token more lead to.

        ``parent`` ends in a dot, or is empty. None if there is no such one, or it depends on that token.
        """
        found = self._index.match_below(parent) if parent and not self.leaving else None
        if found is None or len(found) != 1 or found[0].queue or isinstance(found[0], HubSubscription):
            return None
        return found[0]

    def overlaps(self, subjects: str) -> bool:
        """Whether a subscription may match a subject that a filter matches."""
        return bool(self._index.overlapping(subjects))

    def has_subscriber(self, subject: str) -> bool:
        return self.targets(subject).any

    def deliver(
        self, route: str, frame: MessageFrame, origin: Receiver | None = None, *, queue: str | None = None
    ) -> int:
        """Deliver a message to the subscriptions that match ``route``; return how many clients got it.

        With ``queue`` only to that group's members, or with "" only to those of no group.
        """
        return self.deliver_to(self.targets(route), route, frame, origin, queue=queue)

    def deliver_all(self, route: str, messages: Sequence[Delivered | Incoming], *, queue: str | None = None) -> None:
        """Deliver what a store has for ``route``, in its order."""
        only = None if queue else self.targets(route).only
        if only is not None and not only.is_cut and not only.limit:
            _deliver_alone(only, messages)
            return
        for message in messages:
            frame = MessageFrame(message.subject, message.reply, message.headers, message.data)
            self.deliver(route, frame, queue=queue)

    def deliver_for(
        self, targets: Targets, route: str, frame: MessageFrame, origin: Receiver, queues: Sequence[str] | None
    ) -> int:
        """Do the same for these groups, and those of no group; for all with None."""
        if queues is None:
            return self.deliver_to(targets, route, frame, origin)
        return sum([self.deliver_to(targets, route, frame, origin, queue=queue) for queue in ("", *queues)])

    def deliver_to(
        self,
        targets: Targets,
        route: str,
        frame: MessageFrame,
        origin: Receiver | None = None,
        *,
        queue: str | None = None,
    ) -> int:
        """Do the same with targets that are known."""
        count = 0
        if not queue:
            for one in targets.plain:
                client = one.client
                if (client is not origin or origin.echo) and not (one.is_cut and not client.may_receive(one, route)):
                    client.deliver(one, frame)
                    count += 1
        if targets.far:
            count += self._forward(targets.far, route, frame, origin, queue)
        if queue == "" or not targets.groups:
            return count
        for group in targets.groups:
            if queue is None or group[0].queue == queue:
                count += self._deliver_to_one(route, group, frame, origin)
        return count

    def _forward(
        self,
        far: Sequence[HubSubscription],
        route: str,
        frame: MessageFrame,
        origin: Receiver | None,
        queue: str | None,
    ) -> int:
        """Send a message to each hub once that subscribes, and name the groups that are to choose a member there."""
        chosen: dict[Hub, list[str]] = {}
        groups: dict[str, list[HubSubscription]] = {}
        for one in far:
            if one.client is origin or (queue is not None and one.queue != queue):
                continue
            if one.queue:
                groups.setdefault(one.queue, []).append(one)
            else:
                chosen.setdefault(one.hub, [])
        for name, members in groups.items():
            # Mostly there is one hub. Of several, each gets as much as its members' share is.
            if len(members) > 1:
                fit = [one for one in members if one.hub.may_publish(route)] or members
                picked = self._choose([one for one in fit for _ in range(min(one.weight, _HEAVIEST))])
                members = [one for one in fit if one is picked]
            chosen.setdefault(members[0].hub, []).append(name)
        return sum([hub.forward(route, frame, queues) for hub, queues in chosen.items()])

    def _deliver_to_one(
        self, route: str, group: Sequence[ClientSubscription], frame: MessageFrame, origin: Receiver | None
    ) -> int:
        fit = [
            one
            for one in group
            if (one.client is not origin or origin.echo) and not (one.is_cut and not one.client.may_receive(one, route))
        ]
        if not fit:
            return 0
        one = fit[0] if len(fit) == 1 else self._choose(fit)
        one.client.deliver(one, frame)
        return 1

    def targets(self, subject: str) -> Targets:
        """Return where a subject leads."""
        matches = self.subscriptions(subject)
        if len(matches) > _SHARED_UP_TO:
            return _targets(subject, matches)
        found = self._shared.get(matches)
        if found is None:
            if len(self._shared) >= _REMEMBERED:
                self._shared.clear()
            found = self._shared[matches] = _targets(subject, matches)
        return found


def _targets(subject: str, matches: tuple[ClientSubscription, ...]) -> Targets:
    """Return where a subject leads that has these matches; quickly, as they can be hundreds of thousands."""
    if has_wildcard(subject):
        # One with the character of a wildcard matches a filter that has it there in two ways.
        matches = tuple(dict.fromkeys(matches))
    groups: dict[str, list[ClientSubscription]] = {}
    far = [one for one in matches if isinstance(one, HubSubscription)]
    if far:
        matches = tuple([one for one in matches if not isinstance(one, HubSubscription)])
    for one in [one for one in matches if one.queue]:
        groups.setdefault(one.queue, []).append(one)
    plain = tuple([one for one in matches if not one.queue]) if groups else matches
    # As on nats-server, a hub gets what is for a group only if no member is here.
    far = [one for one in far if one.queue not in groups]
    only = plain[0] if len(plain) == 1 and not (groups or far) else None
    is_alike = 0 < len(matches) <= _SHARED_UP_TO and not (groups or far)
    is_apart = is_alike and len({one.client for one in plain}) == len(plain)
    return Targets(plain, tuple(map(tuple, groups.values())), bool(plain or groups or far), only, is_apart, tuple(far))


# So many subscriptions of a client that has left end in one round.
_ENDED_AT_ONCE: Final = 512


class Departures:
    """Ends the subscriptions of clients that have left: some in each round of the event loop.

    A client with 400,000 would have the loop for seconds. Nobody finds those that are left meanwhile (:class:`Router`):
    they get no messages, hold up no queue group, and count no more. ``remove`` ends one that ``router`` has.
    """

    def __init__(self, router: Router, remove: Callable[[ClientSubscription], None]) -> None:
        self._router = router
        self._remove = remove
        self._left: list[dict[bytes, ClientSubscription]] = []

    def begin(self, subscriptions: dict[bytes, ClientSubscription]) -> None:
        """End subscriptions that their client has no more; the first ones now."""
        self._router.leaving += len(subscriptions)
        self._left.append(subscriptions)
        self._go_on(subscriptions)

    def _go_on(self, subscriptions: dict[bytes, ClientSubscription]) -> None:
        for _ in range(min(_ENDED_AT_ONCE, len(subscriptions))):
            _, one = subscriptions.popitem()
            self._router.leaving -= 1
            self._remove(one)
        if subscriptions:
            asyncio.get_running_loop().call_soon(self._go_on, subscriptions)
        else:
            self._left = [one for one in self._left if one]

    def forget(self) -> None:
        """End none of them any more: their account has ended."""
        for subscriptions in self._left:
            subscriptions.clear()


_MOST_WAITING: Final = 16_384
_MOST_BYTES: Final = 64 << 20


_Place = tuple[str, str]
"""Where a message is answered, and the stream that takes it."""


class Storing:
    """Stores messages of clients, in groups, and has them answered. ``domain`` is JetStream's, or "".

    ``after_adjusting`` calls back when other processes know what clients subscribed to so far.
    """

    def __init__(
        self,
        serving: Serving,
        after_adjusting: Callable[[Callable[[], None]], None],
        send_answers: Callable[[Sequence[str], Sequence[bytes]], None],
        domain: str,
    ) -> None:
        self._serving = serving
        self._after_adjusting = after_adjusting
        self._send_answers = send_answers
        self._domain = domain
        self._messages: list[Outgoing] = []
        self._places: list[_Place] = []
        self._waiting = 0
        self._bytes = 0
        self._finished = 0
        self._paused: set[Receiver] = set()
        self._done = Signal()
        # How many wait for what was added.
        self._awaiting = 0

    def add(self, client: Receiver | None, message: Outgoing, reply: str, stream: str) -> None:
        """Store a message at the end of this round."""
        self._begin()
        self._messages.append(message)
        self._places.append((reply, stream))
        self._count(client, 1, len(message.data))

    def add_run(self, client: Receiver, run: PubRun, stream: str, *, is_answered: bool) -> int:
        """Store messages that follow each other at the end of this round; return their size."""
        self._begin()
        subject, payloads, replies = run.subject, run.payloads, run.replies
        self._messages += [Outgoing(subject, data) for data in payloads]
        self._places += zip(replies if is_answered else repeat("", len(replies)), repeat(stream), strict=False)
        size = sum(map(len, payloads))
        self._count(client, len(payloads), size)
        return size

    def _begin(self) -> None:
        if not self._messages:
            self._serving.soon(self._flush)

    def _count(self, client: Receiver | None, count: int, size: int) -> None:
        self._waiting += count
        self._bytes += size
        is_behind = self._waiting > _MOST_WAITING or self._bytes > _MOST_BYTES
        if is_behind and client is not None and client not in self._paused:
            self._paused.add(client)
            client.stop_reading()

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        places, self._places = self._places, []
        if self._serving.has_republishers:
            # Who has subscribed before a publish gets what a stream republishes of it.
            self._after_adjusting(partial(self._store, messages, places))
        else:
            self._store(messages, places)

    def _store(self, messages: Sequence[Outgoing], places: Sequence[_Place]) -> None:
        size = sum([len(message.data) for message in messages])
        self._serving.store(messages, partial(self._on_stored, places, size, [len(messages)]))

    def _on_stored(
        self, places: Sequence[_Place], size: int, left: list[int], first: int, results: Sequence[PubAck | PeltonError]
    ) -> None:
        domain, replies, bodies = self._domain, list[str](), list[bytes]()
        for (reply, stream), it in zip(places[first:] if first else places, results, strict=False):
            if reply:
                replies.append(reply)
                bodies.append(encode_pub_ack(it, domain) if isinstance(it, PubAck) else encode_pub_error(it, stream))
        self._send_answers(replies, bodies)
        self._waiting -= len(results)
        left[0] -= len(results)
        if not left[0]:
            self._bytes -= size
        if self._paused and 2 * self._waiting <= _MOST_WAITING and 2 * self._bytes <= _MOST_BYTES:
            paused, self._paused = self._paused, set()
            for client in paused:
                client.read_again()
        self._finished += len(results)
        if self._awaiting:
            self._done.notify()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added so far is stored and answered."""
        return not self._waiting

    async def up_to_here(self) -> None:
        """Wait until everything that was added so far is stored and answered."""
        wanted = self._finished + self._waiting
        self._awaiting += 1
        try:
            while self._finished < wanted:
                await self._done.wait(self._done.generation)
        finally:
            self._awaiting -= 1
