"""The messages of the hot path: light structs that the garbage collector does not track."""

from typing import Final, Literal

import msgspec

AckKind = Literal["ack", "nak", "progress", "term"]
ACK_PREFIX: Final = "$JS.ACK."


class Delivered(msgspec.Struct, gc=False):
    """One delivery of a stored message to one consumer.

    `time_ns` is when the message was stored, `headers` its encoded block or None. `consumer_seq` numbers this
    delivery and names it in an `AckOp`; `num_delivered` counts the deliveries of this message, this one
    included; `num_pending` messages were still undelivered after it. `token`, the fencing token, grows with every
    delivery of the consumer: an external system that remembers the largest can refuse a holder that was replaced.
    `jumped_ns` is by how much a store's wall clock has jumped since, if ages matter in the stream.
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
    jumped_ns: int = 0

    @property
    def reply(self) -> str:
        """The subject on which this delivery is acknowledged (ADR-15)."""
        return (
            f"{ACK_PREFIX}{self.stream}.{self.consumer}.{self.num_delivered}.{self.seq}.{self.consumer_seq}."
            f"{self.time_ns}.{self.num_pending}"
        )


class PullRequest(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """How much one pull requests, and how long it waits (ADR-13).

    `max_bytes` 0 is no limit. `expires_ns` None waits until a message comes; `no_wait` does not wait at all.

    On a consumer with priority groups (ADR-42) `group` names one, and by its policy: `pin_id` is the id of this
    client's pin; `priority` is 0 (first) to 9; with `min_pending` or `min_ack_pending` messages come only while at
    least that many are pending, or await acks; with `failover_ns` only when no preferred client (one without, or with
    shorter `failover_ns`) has pulled for that time. A waiting pull is renewed every `renew_ns` (0: never), if waiting
    alone does not show that the client lives.
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
    """The ack of one delivery: done, redeliver (after `delay_ns`), still working, or never again.

    `num_delivered` identifies nothing: a server repeats it in its advisories about the ack. `token` is the delivery's,
    or 0: with it an ack never settles the delivery of another consumer that was created under the same name. `cause`,
    a number of the caller's own, is kept with a message that is given back, and shown among the unsettled; servers
    ignore it. `is_of_any` settles the message whichever delivery of it is held now, as a NATS server does.
    """

    kind: AckKind = "ack"
    seq: int
    consumer_seq: int
    delay_ns: int = 0
    reason: str = ""
    num_delivered: int = 1
    token: int = 0
    cause: int = 0
    is_of_any: bool = False


class Incoming(msgspec.Struct, gc=False):
    """A message as its subscribers receive it: at most once, never stored for them, never redelivered.

    `headers` is the encoded block or None; `reply_to` is where the publisher awaits an answer, or empty. `delivered`
    is its delivery, if a push consumer of this process sent it.
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
