"""Handles for users: a store, a stream, a consumer, a message."""

from pelton.api.times import Seconds
from pelton.jet.consumer import Consumer
from pelton.jet.message import AnyMessage, HeaderValues, Message, Metadata, PublishOptions, ack_of
from pelton.jet.stream import Stream
from pelton.jet.streams import CoreMessage, Streams, Subscription
from pelton.jet.transaction import Savepoint, SqlReads, StreamsTransaction

__all__ = [
    "AnyMessage",
    "Consumer",
    "CoreMessage",
    "HeaderValues",
    "Message",
    "Metadata",
    "PublishOptions",
    "Savepoint",
    "Seconds",
    "SqlReads",
    "Stream",
    "Streams",
    "StreamsTransaction",
    "Subscription",
    "ack_of",
]
