"""The reply subject of a delivery, which names the delivery in its ack (ADR-15).

``$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>``; servers in a domain put domain and
account hash before the stream, and a random token at the end.
"""

from collections.abc import Sequence
from typing import Final

from pelton.api.errors import ConfigError
from pelton.api.message import ACK_PREFIX, Delivered

_SHORT: Final = 9
_LONG: Final = 11


def delivery_of(subject: str, reply: str, headers: bytes | None, data: bytes) -> Delivered:
    """Return a pushed or pulled message as a delivery; `ConfigError` if its reply subject names none.

    The fencing token is the delivery's number.
    """
    stream, consumer, deliveries, seq, consumer_seq, time_ns, pending = _where(reply)
    number = int(consumer_seq)
    return Delivered(
        subject, int(seq), int(time_ns), headers, data, number, int(deliveries), int(pending), stream, consumer, number
    )


def _where(reply: str) -> Sequence[str]:
    tokens = reply.split(".")
    if reply.startswith(ACK_PREFIX) and len(tokens) == _SHORT:
        return tokens[2:]
    if reply.startswith(ACK_PREFIX) and len(tokens) >= _LONG:
        return tokens[4:11]
    raise ConfigError(f"{reply!r} names no delivery: the message does not come from a consumer")
