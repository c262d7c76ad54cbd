"""kombu's virtual transport on a store: what runs on the thread that drives a connection."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from kombu.transport import base, virtual

from pelton._version import VERSION
from pelton.api import ApiError, ConfigError, StoreError
from pelton.contrib.kombu.broker import Broker, BrokerOptions, Credit
from pelton.contrib.kombu.channel import PeltonChannel
from pelton.contrib.kombu.inbox import Arrival, Inbox
from pelton.contrib.process_store import ProcessStore, address_of, masked, process_store
from pelton.queue import ClaimedJob


class Transport(virtual.Transport):  # type: ignore[misc]
    """kombu's transport on a store: ``pelton:///folder/shop.pelton``, ``pelton://shop.pelton``,
    ``pelton+nats://host:4222``.

    ``transport_options``: ``lease``, how many seconds a process that died keeps its messages (30; fixed when a queue is
    created), ``max_attempts``, after how many deaths of its workers a message becomes a dead letter (20),
    ``history_max_age``, how many seconds ended messages are listed (7 days), and ``num_replicas``, on how many servers
    of a cluster a new queue is kept (1).
    """

    Channel = PeltonChannel
    can_parse_url = True
    driver_type = driver_name = "pelton"
    default_port = None
    polling_interval = None
    connection_errors: tuple[type[BaseException], ...] = (*virtual.Transport.connection_errors, StoreError)
    channel_errors: tuple[type[BaseException], ...] = (*virtual.Transport.channel_errors, ApiError, ConfigError)
    implements: Any = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    store: ProcessStore
    broker: Broker

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = {
            name: value for name, value in client.transport_options.items() if name in BrokerOptions.__struct_fields__
        }
        self._options = msgspec.convert(options, BrokerOptions, strict=False)
        self.inbox: Inbox | None = None
        # The queues that live in this connection, and what waits in them.
        self.buffers: dict[str, deque[dict[str, Any]]] = {}
        self.consumers: dict[str, tuple[PeltonChannel, bool]] = {}

    def driver_version(self) -> str:
        """Return the version of Pelton."""
        return VERSION

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL without its secrets."""
        shown = uri if uri.startswith("pelton") else f"pelton+{uri}"
        return shown if include_password else masked(shown)

    # --- connecting

    def establish_connection(self) -> Any:
        """Open the store, if this process has not opened it yet."""
        self.store = process_store(address_of(self.client.hostname or ""))
        inbox = self.inbox = Inbox()
        options, jet = self._options, self.store.jet
        self.broker = self.store.run(lambda: Broker(jet, options, inbox))
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Hand back what was not acknowledged, and wait until what was is on disk."""
        super().close_connection(connection)
        inbox, self.inbox = self.inbox, None
        if inbox is None:
            return
        try:
            if self.store.is_usable:
                self.store.run(self.broker.close)
        finally:
            inbox.close()

    def verify_connection(self, connection: Any) -> bool:
        """Whether the store is open."""
        return self.store.is_usable

    # --- delivering

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages when they arrive."""
        loop.add_reader(self._inbox.fileno(), self.on_readable)

    def on_readable(self) -> None:
        """Deliver all messages that have arrived."""
        inbox = self._inbox
        inbox.clear_signal()
        try:
            while self.inbox is inbox and self.deliver_next():
                pass
        except BaseException:
            inbox.signal()
            raise

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the next message; waits for it. Raises TimeoutError."""
        clock = self.store.jet.runtime.clock
        end = None if timeout is None else clock.monotonic() + timeout
        while not self.deliver_next():
            left = None if end is None else end - clock.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._inbox.wait(left)

    def deliver_next(self) -> bool:
        """Deliver a message; return whether there was one."""
        while True:
            for queue, buffer in self.buffers.items():
                if buffer and queue in self._callbacks:
                    self._call_back(queue, buffer.popleft(), None)
                    return True
            arrival = self._inbox.pop()
            if arrival is None:
                return False
            if arrival.job is None:
                self._buffer(arrival)
                continue
            self._note_taken(arrival.queue)
            if arrival.queue in self._callbacks:
                self._call_back(arrival.queue, arrival.message, arrival)
                return True
            self._hand_back([arrival], None)

    def sort_arrivals(self) -> None:
        """Put what has arrived for queues of this connection there."""
        for arrival in self._inbox.take_all():
            if arrival.job is None:
                self._buffer(arrival)
            else:
                self._inbox.put(arrival)

    def drop_arrivals(self, queue: str, credit: Credit) -> None:
        """Hand back what has arrived of a queue and was not delivered."""
        kept: list[Arrival] = []
        dropped: list[Arrival] = []
        for arrival in self._inbox.take_all():
            (dropped if arrival.queue == queue and arrival.job is not None else kept).append(arrival)
        for arrival in kept:
            self._inbox.put(arrival)
        self._hand_back(dropped, credit)

    def deliver_later(self, queue: str) -> None:
        """Deliver what waits in a queue of this connection."""
        if self.buffers[queue]:
            self._inbox.signal()

    def put_back(self, message: Any) -> None:
        """Put a message of a queue of this connection back."""
        for queue, buffer in self.buffers.items():
            if queue == message.properties.get("pelton_queue"):
                buffer.appendleft(message.serializable())
                self._inbox.signal()

    def _call_back(self, queue: str, raw: dict[str, Any], arrival: Arrival | None) -> None:
        channel, no_ack = self.consumers[queue]
        if arrival is None:
            raw = {**raw, "properties": {**raw["properties"], "pelton_queue": queue}}
        self._callbacks[queue](channel.received(raw, arrival, no_ack=no_ack))

    def _buffer(self, arrival: Arrival) -> None:
        queues = {arrival.queue}
        if arrival.exchange and self.channels and arrival.exchange in self.state.exchanges:
            channel, name = self.channels[0], arrival.exchange
            queues = channel.typeof(name).lookup(channel.get_table(name), name, arrival.routing_key, None)
        for queue in queues:
            buffer = self.buffers.get(queue)
            if buffer is not None:
                buffer.append(arrival.message)

    def _hand_back(self, arrivals: list[Arrival], credit: Credit | None) -> None:
        if arrivals and self.store.is_usable:
            broker = self.broker
            self.store.start_later(lambda: broker.end(arrivals, ClaimedJob.hand_back, credit))

    def _note_taken(self, queue: str) -> None:
        consumer = self.consumers.get(queue)
        if consumer is not None:
            self.store.start_later(consumer[0]._credit.changed)

    @property
    def _inbox(self) -> Inbox:
        if self.inbox is None:
            raise ConnectionError("the connection is closed")
        return self.inbox
