"""Handles for users: a store, a stream, a consumer, a message."""

from pelton.api.times import Seconds as Seconds
from pelton.jet.consumer import Consumer as Consumer
from pelton.jet.message import AnyMessage as AnyMessage
from pelton.jet.message import HeaderValues as HeaderValues
from pelton.jet.message import Message as Message
from pelton.jet.message import Metadata as Metadata
from pelton.jet.message import PublishOptions as PublishOptions
from pelton.jet.message import ack_of as ack_of
from pelton.jet.stream import Stream as Stream
from pelton.jet.streams import CoreMessage as CoreMessage
from pelton.jet.streams import Streams as Streams
from pelton.jet.streams import Subscription as Subscription
from pelton.jet.transaction import Savepoint as Savepoint
from pelton.jet.transaction import SqlReads as SqlReads
from pelton.jet.transaction import StreamsTransaction as StreamsTransaction
