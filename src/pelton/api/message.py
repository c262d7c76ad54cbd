"""The messages of the hot path: plain light structs, out of the garbage collector's sight."""

from typing import Final, Literal

import msgspec

AckKind = Literal["ack", "nak", "progress", "term"]
ACK_PREFIX: Final = "$JS.ACK."


class Delivered(msgspec.Struct, gc=False):
    """One delivery of a stored message to one consumer.

    `time_ns` is when the message was stored, `headers` its encoded block or None. `consumer_seq` numbers this
    delivery and names it in an `AckOp`; `num_delivered` counts the deliveries of this message, this one
    included; `num_pending` messages were still undelivered after it. `token` grows with every delivery of the
    consumer: an outside system that remembers the largest it has seen can refuse a holder that was replaced.
    """

    subject: str
    seq: int
    time_ns: int
    headers: bytes | None
    data: bytes
    consumer_seq: int
    num_delivered: int
    num_pending: int
    stream: str
    consumer: str
    token: int = 0

    @property
    def reply(self) -> str:
        """The subject on which this delivery is acknowledged (ADR-15)."""
        return (
            f"{ACK_PREFIX}{self.stream}.{self.consumer}.{self.num_delivered}.{self.seq}.{self.consumer_seq}."
            f"{self.time_ns}.{self.num_pending}"
        )


class PullRequest(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """How much one pull wants, and how long it waits (ADR-13).

    `max_bytes` 0 is no limit. `expires_ns` None waits until a message comes; `no_wait` does not wait at all.

    On a consumer with priority groups (ADR-42) `group` names one, and by its policy: `pin_id` is the id of the pin
    that this client was given; `priority` is 0 (first) to 9; with `min_pending`, `min_ack_pending` or `failover_ns`
    messages come only while so many are pending, or await acks, or when no nearer client (one without, or with
    shorter `failover_ns`) has pulled for so long. Who waits shows every `renew_ns` (0: never) that it lives, where
    waiting alone does not.
    """

    batch: int = 1
    max_bytes: int = 0
    expires_ns: int | None = None
    no_wait: bool = False
    group: str = ""
    pin_id: str = ""
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0
    failover_ns: int = 0
    renew_ns: int = 0


class AckOp(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """What a client says of one delivery: done, again (after `delay_ns`), still working, or never again.

    `num_delivered` names nothing: a server repeats it in what it says of the ack. `token` is the delivery's, or 0: with
    it an ack never settles the delivery of another consumer that was made under the same name.
    """

    kind: AckKind = "ack"
    seq: int
    consumer_seq: int
    delay_ns: int = 0
    reason: str = ""
    num_delivered: int = 1
    token: int = 0


class Incoming(msgspec.Struct, gc=False):
    """A message told to whoever listened when it was published: never stored for them, never told again.

    `headers` is the encoded block or None; `reply_to` is where the publisher awaits an answer, or empty. `delivered`
    is the delivery that it is, where a push consumer of this process sent it.
    """

    subject: str
    data: bytes
    headers: bytes | None = None
    reply_to: str = ""
    delivered: Delivered | None = None

    @property
    def reply(self) -> str:
        """The subject on which an answer, or an ack, is awaited; or empty."""
        return self.delivered.reply if self.delivered is not None else self.reply_to
