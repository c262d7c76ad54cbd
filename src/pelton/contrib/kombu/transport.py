"""kombu's virtual transport on a store, and its channels: what runs on the thread that drives a connection.

**A channel of a connection to a store, and its messages that are not acknowledged.** A queue is durable, and its
messages are stored, unless it is declared with ``auto_delete`` or ``exclusive``: such a queue lives in the connection
that declares it, for as long as that is open.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from queue import Empty
from typing import Any, Final
from warnings import warn

import msgspec
from kombu.transport import base, virtual
from kombu.transport.virtual.base import UndeliverableWarning
from kombu.utils.json import dumps

from pelton._version import VERSION
from pelton.api import ApiError, ConfigError, PermanentJobError, StoreError
from pelton.contrib.kombu.broker import (
    Arrival,
    Broker,
    BrokerOptions,
    Credit,
    ExchangeRecord,
    Inbox,
    exchange_subject,
    queue_subject,
)
from pelton.contrib.process_store import ProcessStore, address_of, mask_secrets, process_store
from pelton.queue import ClaimedJob

# What a queue of a connection keeps for a consumer that does not come.
_MOST_BUFFERED: Final = 65_536
_tags: Final = count(1)


def _reject(job: ClaimedJob) -> None:
    job.fail(PermanentJobError("the consumer rejected the message"))


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """Messages of a channel that are not acknowledged."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; that is on disk soon."""
        self.channel.end(delivery_tag, ClaimedJob.complete)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Hand a message back, or make it a dead letter."""
        if requeue and not self.channel.is_held(delivery_tag):
            self.channel.connection.put_back(self._delivered[delivery_tag])
        self.channel.end(delivery_tag, ClaimedJob.hand_back if requeue else _reject)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Hand back all messages that are not acknowledged."""
        self._flush()
        for delivery_tag in list(self._delivered):
            self.reject(delivery_tag, requeue=True)
        self._flush()
        return []


class PeltonChannel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel of a connection to a store."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._credit: Credit = connection.broker.credit()
        # What was delivered here and is held under a lease.
        self._held: dict[str, Arrival] = {}

    # --- publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message; returns when it is on disk in all durable queues that get it."""
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        transport = self.connection
        text = dumps(message).encode()
        record = transport.store.run(transport.broker.exchange, exchange) or ExchangeRecord()
        known = self.state.exchanges.get(exchange, {})
        kind = self.exchange_types[known.get("type") or record.type]
        for queue in kind.lookup(record.table, exchange, routing_key, None):
            transport.store.run(transport.broker.put, queue, message, text)
        data = b"".join((b"[", dumps(routing_key).encode(), b",", text, b"]"))
        transport.store.run(transport.broker.send, exchange_subject(exchange), data)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        transport = self.connection
        text = dumps(message).encode()
        if queue not in transport.buffers and transport.store.run(transport.broker.exists, queue):
            transport.store.run(transport.broker.put, queue, message, text)
        elif not transport.store.run(transport.broker.send, queue_subject(queue), text):
            warn(f"there is no queue {queue!r}: declare it first", UndeliverableWarning, stacklevel=4)

    # --- queues

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        transport = self.connection
        if not (kwargs.get("auto_delete") or kwargs.get("exclusive")):
            transport.store.run(transport.broker.declare, queue)
        elif queue not in transport.buffers:
            transport.buffers[queue] = deque(maxlen=_MOST_BUFFERED)
            transport.store.run(transport.broker.subscribe_queue, queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        transport = self.connection
        return queue in transport.buffers or bool(transport.store.run(transport.broker.exists, queue))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        transport = self.connection
        if queue in transport.buffers:
            transport.store.run(transport.broker.subscribe_exchange, exchange)
        else:
            kind = self.state.exchanges[exchange]["type"]
            transport.store.run(transport.broker.bind, exchange, kind, (routing_key or "", pattern, queue))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Remove a binding, here and in the store."""
        super().queue_unbind(queue, exchange, routing_key, arguments, **kwargs)
        transport = self.connection
        if queue not in transport.buffers:
            kind = self.typeof(exchange)
            binding = kind.prepare_bind(queue, exchange, routing_key, arguments)
            transport.store.run(transport.broker.unbind, exchange, binding)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Remove a queue with its messages and bindings."""
        transport = self.connection
        if (if_empty and self._size(queue)) or (if_unused and queue in transport._callbacks):
            return
        if transport.buffers.pop(queue, None) is not None:
            transport.store.run(transport.broker.unsubscribe_queue, queue)
        else:
            transport.store.run(transport.broker.delete, queue)
        for exchange in self.state.exchanges.values():
            exchange["table"][:] = [meta for meta in exchange["table"] if meta[2] != queue]
        self.state.queue_bindings_delete(queue)

    def _size(self, queue: str) -> int:
        transport = self.connection
        buffer = transport.buffers.get(queue)
        return len(buffer) if buffer is not None else int(transport.store.run(transport.broker.size, queue))

    def _purge(self, queue: str) -> int:
        transport = self.connection
        buffer = transport.buffers.get(queue)
        if buffer is None:
            return int(transport.store.run(transport.broker.purge, queue))
        purged = len(buffer)
        buffer.clear()
        return purged

    # --- consuming

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages this channel may have that are not acknowledged; 0: any number."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        credit, limit = self._credit, prefetch_count or 0
        self.connection.store.start_later(lambda: credit.set_limit(limit))

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Deliver a queue's messages to a callback, from `drain_events`."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        transport = self.connection
        transport.consumers[queue] = self, no_ack
        if queue in transport.buffers:
            transport.deliver_later(queue)
        else:
            transport.store.run(transport.broker.consume, queue, self._credit)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver no more; messages that were not delivered yet are handed back."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        transport = self.connection
        if queue is not None and transport.consumers.pop(queue, None) and transport.store.is_usable:
            transport.store.run(transport.broker.cancel, queue)
            transport.drop_arrivals(queue, self._credit)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message of a queue, or None."""
        try:
            raw, arrival = self._next(queue)
        except Empty:
            return None
        message = self.Message(self.to_deliver(raw, arrival, no_ack=no_ack), channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _next(self, queue: str) -> tuple[dict[str, Any], Arrival | None]:
        transport = self.connection
        transport.sort_arrivals()
        buffer = transport.buffers.get(queue)
        if buffer is not None:
            if not buffer:
                raise Empty
            return buffer.popleft(), None
        arrival = transport.store.run(transport.broker.get, queue)
        if arrival is None:
            raise Empty
        # ``basic_get`` uses no credit of a consumer: one is added, so that the ack can subtract it.
        self._credit_of_gets(arrival)
        return arrival.message, arrival

    def _credit_of_gets(self, arrival: Arrival) -> None:
        credit = self._credit
        self.connection.store.start_later(lambda: credit.add(1))

    def to_deliver(self, raw: dict[str, Any], arrival: Arrival | None, *, no_ack: bool) -> dict[str, Any]:
        """Return a message to deliver, with a tag of its own."""
        tag = f"{next(_tags)}"
        given = dict(raw.get("properties", {}).get("delivery_info") or {})
        if arrival is not None and arrival.job is not None:
            given["redelivered"] = arrival.job.records.delivered.num_delivered > 1
            self._held[tag] = arrival
        properties = {**raw.get("properties", {}), "delivery_tag": tag, "delivery_info": given}
        if no_ack:
            self.end(tag, ClaimedJob.complete)
        return {**raw, "properties": properties}

    def is_held(self, delivery_tag: str) -> bool:
        """Whether a message is held under a lease."""
        return delivery_tag in self._held

    def end(self, delivery_tag: str, report: Any) -> None:
        """Report how a message ended."""
        arrival = self._held.pop(delivery_tag, None)
        transport = self.connection
        if arrival is not None and transport.store.is_usable:
            broker, credit = transport.broker, self._credit
            transport.store.start_later(lambda: broker.end([arrival], report, credit))

    def after_reply_message_received(self, queue: str) -> None:
        """Keep the queue of replies: the next call of the same client uses it again."""


# --- kombu's virtual transport on a store: what runs on the thread that drives a connection


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
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
        return shown if include_password else mask_secrets(shown)

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
        self._callbacks[queue](channel.to_deliver(raw, arrival, no_ack=no_ack))

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
            self.store.start_later(consumer[0]._credit.note_emptied)

    @property
    def _inbox(self) -> Inbox:
        if self.inbox is None:
            raise ConnectionError("the connection is closed")
        return self.inbox
