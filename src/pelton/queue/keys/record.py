"""The record of a key: who holds it, which of its jobs is next, and what is still to be carried out. Pure.

A key's record is one message of one subject, replaced under the condition that it is still the one its writer has
seen (``Nats-Expected-Last-Subject-Sequence``): everything about a key changes in one place, in one order, and two
workers that decide on the same state cannot both succeed. The states, and what moves a key between them::

    absent   claim     -> held      a worker has the first job after ``done``; the record's sequence is its token
    free     claim     -> held
    waiting  claim     -> held      after its delay
    held     claim     -> held      by another worker, if the holder has not renewed it for a lease: a larger token
    held     renew     -> held      the same token
    held     settle    -> settled   the attempt is over: its messages (``outbox``) are decided, and not yet published
    settled  carry out -> free      the outbox is published, and the job, if it has ended, removed
    settled  carry out -> waiting   the job is retried after ``delay_ns``
    settled  refuse    -> held      a message of the outbox is refused: the attempt is not over

Settling is what counts: a holder that was replaced cannot settle, since the record has changed. From then on any
worker may carry it out, and repeating that is harmless. The server removes a free record after an hour, so that keys
leave nothing behind.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pelton.queue.model.states import Attempt

HoldState = Literal["held", "settled", "waiting", "free"]
FREE_FOR_S: Final = 3600
_REFUSED_NS: Final = 1_000_000_000


class Posted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of an outbox."""

    subject: str
    data: bytes
    headers: bytes | None = None


class KeyRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a key.

    ``done``: the last job of the key that has ended; the next is the first one stored after it. ``job``: the current
    one, 0 if it was not looked up yet. ``tries`` counts its claims, ``token`` is the sequence of the last one (0 in
    that record itself), ``known`` is what its attempts left. ``name`` begins the message ids of the outbox, and is
    unique.
    """

    state: HoldState
    done: int = 0
    job: int = 0
    tries: int = 0
    token: int = 0
    worker: str = ""
    ended: bool = False
    delay_ns: int = 0
    known: Attempt | None = None
    name: str = ""
    outbox: tuple[Posted, ...] = ()


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(KeyRecord).decode


def claimed(before: KeyRecord | None, worker: str) -> KeyRecord:
    """Return the record of a key that ``worker`` takes."""
    if before is None or before.state == "free":
        return KeyRecord(state="held", done=before.done if before else 0, tries=1, worker=worker)
    return KeyRecord(
        state="held", done=before.done, job=before.job, tries=before.tries + 1, worker=worker, known=before.known
    )


def looked(hold: KeyRecord, token: int, job: int) -> KeyRecord:
    """Return a claim with its token and the job that was found for it."""
    if hold.job not in (0, job):
        # The job that was tried was removed.
        hold = msgspec.structs.replace(hold, tries=1, known=None)
    return msgspec.structs.replace(hold, token=token, job=job)


def settled(
    hold: KeyRecord,
    name: str,
    outbox: tuple[Posted, ...],
    *,
    ended: bool,
    delay_ns: int = 0,
    known: Attempt | None = None,
) -> KeyRecord:
    """Return the record of an attempt that is over, with the messages to publish."""
    return msgspec.structs.replace(
        hold, state="settled", name=name, outbox=outbox, ended=ended, delay_ns=delay_ns, known=known or hold.known
    )


def taken_back(hold: KeyRecord) -> KeyRecord:
    """Return the record of an attempt that was settled but is not over after all."""
    return msgspec.structs.replace(hold, state="held", name="", outbox=(), ended=False, delay_ns=0)


def refused(hold: KeyRecord, error: str) -> KeyRecord:
    """Return the record of an attempt whose messages are refused and whose worker is gone: it has failed."""
    returned = hold.known.returned if hold.known is not None else 0
    known = Attempt(id=str(hold.job), attempt=hold.tries - returned, error=error, returned=returned)
    return settled(taken_back(hold), "", (), ended=False, delay_ns=_REFUSED_NS, known=known)


def carried_out(hold: KeyRecord) -> KeyRecord:
    """Return what follows a settled record once everything in it is published."""
    if hold.ended:
        return KeyRecord(state="free", done=hold.job)
    return msgspec.structs.replace(hold, state="waiting", name="", outbox=(), worker="", token=0)


def let_go(hold: KeyRecord) -> KeyRecord:
    """Return the record of a claimed key that has no job."""
    return KeyRecord(state="free", done=hold.done)
