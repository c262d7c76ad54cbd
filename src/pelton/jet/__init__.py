"""The handles a user holds: for a store, a stream, a consumer, a message."""

from pelton.jet.core import Consumer, HeaderValues, Heard, Listening, Message, Metadata, Seconds, Stream, Streams

__all__ = ["Consumer", "HeaderValues", "Heard", "Listening", "Message", "Metadata", "Seconds", "Stream", "Streams"]
