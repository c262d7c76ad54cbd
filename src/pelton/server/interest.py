"""What a server's clients subscribe to, as other processes know it: few rows that cover many subscriptions.

Design: every row is a transaction, and is loaded by every process that has the store open; a client makes subscriptions
by the thousand, one for each request. So subscriptions of inboxes, and of subjects of which there are too many, are
covered by a row for their first token. A queue group has a row of its own, so that other processes can choose it. So
has the deliver subject of a push consumer while a client subscribes to it: a consumer delivers only while somebody
receives.

A row that covers stays; a row for one subject ends with its last subscription.

Rows are made and removed in the order in which clients ask for them, many in a transaction. Whoever waits for that
waits for what was asked for up to then, however much is asked for meanwhile; a client whose own subscriptions are known
waits for nothing, and one that subscribes faster than rows are made is not read for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from pelton.api import Incoming, PeltonError
from pelton.engine.bus import RELAYED
from pelton.engine.serving import FOR_HUB, INBOXES, Serving
from pelton.runtime import Runtime
from pelton.server.connection import AccountPort
from pelton.server.router import ClientSubscription, HubSubscription, Receiver
from pelton.wire.leaf_protocol import HubHello

_log: Final = logging.getLogger("pelton.server")
_OF_A_TOKEN: Final = 64
_ROWS_AT_ONCE: Final = 128
_MOST_WAITING: Final = 1024


class _Row(NamedTuple):
    """What a row stands for: a filter, and a queue group, or ``RELAYED`` for plain subscriptions."""

    subject: str
    queue: str


class RelayedInterest:
    """Keeps the rows of one account's clients."""

    def __init__(self, serving: Serving, account: AccountPort, runtime: Runtime) -> None:
        self._account = account
        self._serving = serving
        self._runtime = runtime
        self._plain: Counter[str] = Counter()
        self._groups: Counter[tuple[str, str]] = Counter()
        self._of_token: dict[str, set[str]] = {}
        self._covered: set[str] = {INBOXES}
        self._rows: dict[_Row, int] = {}
        self._wanted: set[_Row] = {_Row(f"{INBOXES}.>", RELAYED)}
        self._pushed: dict[str, str] = {}
        self._version = -1
        self._task: asyncio.Task[None] | None = None
        # The rows to look at, in the order in which they were changed, each with the number of that change.
        self._changed: dict[_Row, int] = {}
        self._changes = 0
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()
        self._tries: deque[tuple[int, Callable[[], None]]] = deque()
        # Who waits for a change: the number of the last one after which the client has subscribed.
        self._clients: dict[Receiver, int] = {}
        self._paused: set[Receiver] = set()
        self._closed = False

    async def open(self) -> None:
        """Make the first rows."""
        await self._adjust(list(self._wanted))

    # --- what clients do

    def on_subscribe(self, subscription: ClientSubscription) -> None:
        """Note a new subscription."""
        subject, queue = subscription.subject, subscription.queue
        if isinstance(subscription, HubSubscription):
            self._want(_Row(FOR_HUB, RELAYED))
        if queue:
            self._groups[subject, queue] += 1
            if self._groups[subject, queue] == 1:
                self._want(_Row(subject, queue))
        else:
            self._plain[subject] += 1
            if self._plain[subject] == 1:
                self._cover(subject)
        self._look_at_pushes(subject)
        self._note(subscription.client)

    def _note(self, client: Receiver) -> None:
        """Let a client's pings wait for the rows of its subscriptions, and its commands if there are too many."""
        if not self._changed and self._task is None:
            return
        self._clients[client] = self._changes
        if len(self._changed) > _MOST_WAITING and client not in self._paused:
            self._paused.add(client)
            client.stop_reading()

    def on_unsubscribe(self, subscription: ClientSubscription) -> None:
        """Note that a subscription has ended."""
        subject, queue = subscription.subject, subscription.queue
        # A consumer must have no subscriber any more before nothing covers it.
        self._look_at_pushes(subject)
        if queue:
            self._groups[subject, queue] -= 1
            if not self._groups[subject, queue]:
                del self._groups[subject, queue]
                self._want_no_more(_Row(subject, queue))
        else:
            self._plain[subject] -= 1
            if not self._plain[subject]:
                del self._plain[subject]
                self._uncover(subject)
        self._note(subscription.client)

    def _cover(self, subject: str) -> None:
        token = subject.partition(".")[0]
        if token in self._covered or (token.startswith(INBOXES) and token not in ("*", ">")):
            if token not in self._covered:
                self._cover_all(token)
            return
        subjects = self._of_token.setdefault(token, set())
        subjects.add(subject)
        if len(subjects) > _OF_A_TOKEN and token not in ("*", ">"):
            for each in subjects:
                self._want_no_more(_Row(each, RELAYED))
            del self._of_token[token]
            self._cover_all(token)
        else:
            self._want(_Row(subject, RELAYED))

    def _cover_all(self, token: str) -> None:
        self._covered.add(token)
        self._want(_Row(token, RELAYED))
        self._want(_Row(f"{token}.>", RELAYED))

    def _uncover(self, subject: str) -> None:
        token = subject.partition(".")[0]
        if token in self._covered:
            return
        subjects = self._of_token.get(token, set())
        subjects.discard(subject)
        if not subjects:
            self._of_token.pop(token, None)
        self._want_no_more(_Row(subject, RELAYED))

    # --- push consumers

    def look_at_pushes(self) -> None:
        """Adjust the rows of deliver subjects, if consumers have changed."""
        if self._serving.version != self._version:
            self._look_at_pushes("")
        if self._changed:
            self._adjust_soon()

    def is_pushed_here(self, subject: str) -> bool:
        """Whether a client gets what is delivered to a subject by a consumer without a group."""
        return _Row(subject, "") in self._wanted

    def look_at_push(self, subject: str) -> None:
        """Adjust the row of one deliver subject, if it is one."""
        if subject in self._pushed:
            self._look_at_push(subject)

    def _look_at_pushes(self, subject: str) -> None:
        """Adjust the row of one deliver subject, or of all if consumers have changed."""
        if self._serving.version != self._version:
            self._version, subject = self._serving.version, ""
            pushed = self._serving.deliver_subjects()
            for gone in self._pushed.keys() - pushed.keys():
                self._want_no_more(_Row(gone, ""))
            self._pushed = pushed
        if subject in self._pushed:
            self._look_at_push(subject)
        elif not subject:
            for deliver in self._pushed:
                self._look_at_push(deliver)

    def _look_at_push(self, deliver: str) -> None:
        row = _Row(deliver, "")
        # That of a group has its row already. A wildcard is no interest, as on nats-server.
        subscriptions = () if self._pushed[deliver] else self._account.router.subscriptions(deliver)
        is_here = any(one.subject == deliver and not one.queue for one in subscriptions)
        if is_here or (not self._pushed[deliver] and self._account.importing(deliver)):
            self._want(row)
        else:
            self._want_no_more(row)

    # --- rows

    def _want(self, row: _Row) -> None:
        if row not in self._wanted:
            self._wanted.add(row)
            self._change(row)

    def _want_no_more(self, row: _Row) -> None:
        if row in self._wanted:
            self._wanted.discard(row)
            self._change(row)

    def _change(self, row: _Row) -> None:
        self._changes += 1
        self._changed.setdefault(row, self._changes)
        self._adjust_soon()

    def _adjust_soon(self) -> None:
        if self._task is None and not self._closed:
            self._task = self._runtime.spawn(
                self._change_rows(), "pelton tells other processes what clients subscribe to"
            )

    async def _change_rows(self) -> None:
        try:
            while self._changed:
                changed = dict(islice(self._changed.items(), _ROWS_AT_ONCE))
                for row in changed:
                    del self._changed[row]
                try:
                    await self._adjust(list(changed))
                except PeltonError as error:
                    # It is tried again when the server next looks; until then, nobody is told that it is done.
                    self._changed = changed | self._changed
                    _log.warning("other processes do not know yet what clients subscribe to: %s", error)
                    break
                self._tell()
        finally:
            self._task = None
            _call(self._tries, self._changes + 1)
            self._tell()

    def _tell(self) -> None:
        """Let those go on who wait for what is done."""
        until = min(self._changed.values(), default=self._changes + 1)
        _call(self._tries, until)
        _call(self._calls, until)
        for client in [client for client, number in self._clients.items() if number < until]:
            del self._clients[client]
        if 2 * len(self._changed) <= _MOST_WAITING:
            paused, self._paused = self._paused, set()
            for client in paused:
                client.read_again()

    async def _adjust(self, rows: Sequence[_Row]) -> None:
        """Make or remove rows, together."""
        # A consumer begins to deliver as soon as it has a subscriber, who must be covered by then.
        missing = sorted((row for row in rows if row in self._wanted and row not in self._rows), key=_is_evidence)
        extra = sorted((row for row in rows if row not in self._wanted and row in self._rows), key=_is_evidence)
        made = await self._serving.change(
            [(row.subject, row.queue, _Relay(row, self._account)) for row in missing],
            [self._rows[row] for row in reversed(extra)],
        )
        for row in extra:
            del self._rows[row]
        self._rows.update(zip(missing, made, strict=True))

    def is_settled(self, client: Receiver) -> bool:
        """Whether other processes know of all subscriptions of a client."""
        return client not in self._clients

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call back when they know all that was subscribed to so far."""
        self._calls.append((self._changes, call))

    def after_adjusting(self, call: Callable[[], None]) -> None:
        """Call back when making the rows that were wanted so far has been tried; at once if none is being made.

        Without them, clients miss what streams republish.
        """
        if self._task is None:
            call()
        else:
            self._tries.append((self._changes, call))

    async def close(self) -> None:
        """Remove all rows."""
        self._closed = True
        self._wanted.clear()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._adjust(list(self._rows))
        except PeltonError:
            # The store has failed: its rows are removed by the next process that meets them.
            return


def _call(calls: deque[tuple[int, Callable[[], None]]], until: int) -> None:
    """Call those that wait for a change before ``until``."""
    while calls and calls[0][0] < until:
        calls.popleft()[1]()


def _is_evidence(row: _Row) -> bool:
    """Whether a row only shows that a push consumer has a subscriber."""
    return not row.queue


class _Relay:
    """Passes messages of a row on to clients."""

    is_relay = True

    def __init__(self, row: _Row, account: AccountPort) -> None:
        self._row = row
        self._account = account

    def receive(self, route: str, messages: Sequence[Incoming]) -> None:
        """Deliver messages to the clients for whom the row stands."""
        queue = self._row.queue
        if not queue:
            # It stands for a push consumer's subscriber, whom another row covers, but for those of other accounts.
            for message in messages:
                self._account.push_abroad(route, message)
            return
        self._account.router.deliver_all(route, messages, queue="" if queue == RELAYED else queue)

    @property
    def capacity(self) -> int:
        """How many more messages the emptiest of a group, or the fullest of others, would like to hold."""
        return self._together([client.room for client in self._clients()])

    @property
    def reserve(self) -> int:
        """The same for how many more can wait to be written."""
        return self._together([client.reserve for client in self._clients()])

    def _clients(self) -> list[Receiver]:
        row = self._row
        there = self._account.importing(row.subject) if not row.queue else []
        return [
            one.client for one in (*self._account.router.subscriptions(row.subject), *there) if one.queue == row.queue
        ]

    def _together(self, rooms: Sequence[int]) -> int:
        return (max(rooms) if self._row.queue else min(rooms)) if rooms else 0


# --- what hubs are told, if the server is a leaf node (``leaf.py``)

Interest = tuple[str, str]
"""A filter, and a queue group or ""."""


class InterestedHub(Receiver, Protocol):
    """The connection to a hub, which is told what changes."""

    @property
    def hub(self) -> HubHello: ...
    @property
    def subscription_list(self) -> list[ClientSubscription]: ...
    def tell(self, key: Interest, number: int) -> None: ...


def _do_nothing() -> None:
    """Look at nothing: there is no store."""


class LeafInterest:
    """What the hubs of one account are told: what its clients subscribe to, and what else it wants (``derive``).

    That is asked for again when ``stamp`` returns another value. ``loop`` is the subject by which it knows itself.
    """

    def __init__(self, derive: Callable[[], Iterable[Interest]], stamp: Callable[[], object], loop: str) -> None:
        self._derive = derive
        self._stamp = stamp
        self.loop: str = loop
        self._seen: object = None
        self._clients: Counter[Interest] = Counter()
        self._derived: Counter[Interest] = Counter()
        self.hubs: list[InterestedHub] = []
        # Who looks when the store may have changed, or when a hub has come or gone.
        self.on_refresh: Callable[[], None] = _do_nothing
        self.on_hubs: Callable[[], None] = _do_nothing

    def on_change(self, subscription: ClientSubscription, number: int) -> None:
        """Note that a subscription has begun (1) or ended (-1)."""
        if isinstance(subscription, HubSubscription):
            return
        key = subscription.subject, subscription.queue
        before = self.weight(key)
        self._clients[key] += number
        if not self._clients[key]:
            del self._clients[key]
        self._tell(key, before)

    def refresh(self) -> None:
        """Note what the store and other accounts want now."""
        if (stamp := self._stamp()) == self._seen:
            return
        self._seen = stamp
        before, self._derived = self._derived, Counter(set(self._derive()))
        for key in before.keys() | self._derived.keys():
            if before[key] != self._derived[key]:
                self._tell(key, before[key] + self._clients[key])
        self.on_refresh()

    def weight(self, key: Interest) -> int:
        """Return how many want it."""
        return self._clients[key] + self._derived[key]

    def all(self) -> list[Interest]:
        return [*self._clients, *(key for key in self._derived if key not in self._clients)]

    def _tell(self, key: Interest, before: int) -> None:
        now = self.weight(key)
        if now != before and (key[1] or not now or not before):
            for hub in self.hubs:
                hub.tell(key, now)
