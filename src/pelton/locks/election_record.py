"""The key of an election in the store: reads it, writes it under a condition, follows it.

The format is that of nats-kv-leader-elect: a key-value bucket whose TTL is the term, and under the key the name of the
candidate that leads. Pelton adds headers that others ignore: the term of a renewal, and on the deletion of a
leader that stepped down a note that it had stood down before.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from pelton.api import (
    ApiError,
    BucketNotFoundError,
    ConfigError,
    Delivered,
    MessageNotFoundError,
    StoredMessage,
    StreamConfig,
    StreamInfo,
    StreamNotFoundError,
    headers,
    rfc3339,
)
from pelton.buckets import reserve_first_token
from pelton.buckets.entry import OPERATION_HEADER, operation_of, stored_block
from pelton.buckets.naming import check_key, key_prefix, stream_of
from pelton.buckets.settings import new_config
from pelton.jet import Stream, Streams
from pelton.jet.ordered import OrderedReader
from pelton.locks.campaign import DeleteRecord, Observation, TermHold, WriteRecord

_DEFAULT_TTL_S: Final = 30.0
_SHORTEST_S: Final = 1.0
_STRICT_SHORTEST_S: Final = 30.0
_LONGEST_S: Final = 3600.0
_TERM: Final = "Pelton-Term"
_FIRST: Final = "0"
_SINCE: Final = "Pelton-Term-Since"
_RELEASED: Final = "Pelton-Term-Released"


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The leader. ``token`` and ``since_ns`` (when it won, by its wall clock) are 0 for leaders of other clients.

    ``renewed_ns`` is when it last renewed the key, ``revision`` that of the key.
    """

    name: str
    """The name of the candidate that leads."""
    token: int
    since_ns: int
    renewed_ns: int
    revision: int

    @property
    def since(self) -> str:
        """When the key was won, as RFC 3339 text; empty if unknown."""
        return rfc3339(self.since_ns) if self.since_ns else ""


class ElectionRecord:
    """The key of one election, written by the candidate ``name``. ``ttl`` in seconds."""

    def __init__(self, jet: Streams, stream: Stream, key: str, name: str) -> None:
        self._jet = jet
        self._stream = stream
        self._subject = key_prefix(stream.config) + check_key(key)
        self._name = name
        self._value = name.encode()

    @property
    def ttl(self) -> float:
        """How long a term lasts without renewal."""
        return self._stream.config.max_age.seconds

    def over(self, jet: Streams) -> ElectionRecord:
        """Return the same record over another connection."""
        other = ElectionRecord.__new__(ElectionRecord)
        other.__dict__.update(self.__dict__)
        other._jet, other._stream = jet, Stream(jet.backend, self._stream.config, jet.runtime)
        return other

    # --- reading

    async def look(self) -> Observation:
        """Return the current content of the key."""
        info: StreamInfo | None = None
        while True:
            try:
                return _observation(await self._stream.get_last_message(self._subject))
            except MessageNotFoundError:
                if info is not None:
                    last = info.state.last_seq
                    return Observation("absent", last, is_unused=last < max(info.config.first_seq, 1))
            # Once more after that: what was written in between would be taken for a write that has vanished, and
            # a leader that stepped down in between be waited for as if it might still lead.
            info = await self._stream.info()

    async def leader(self) -> Leader | None:
        """Return the leader that the key names."""
        try:
            message = await self._stream.get_last_message(self._subject)
        except MessageNotFoundError:
            return None
        if _observation(message).kind != "put":
            return None
        block = stored_block(message) or b""
        token, since = headers.first(block, _TERM), headers.first(block, _SINCE)
        first = token == _FIRST
        return Leader(
            name=message.data.decode(errors="replace"),
            token=message.seq if first else int(token or 0),
            since_ns=int(since or (message.time_ns if first else 0)),
            renewed_ns=message.time_ns,
            revision=message.seq,
        )

    async def follow(self) -> AsyncGenerator[Observation, None]:
        """Yield the content of the key, and its changes, for ever."""
        reader = OrderedReader(
            self._jet.backend,
            self._jet.runtime,
            self._stream.name,
            deliver_policy="last_per_subject",
            filter_subject=self._subject,
            headers_only=True,
        )
        async with aclosing(reader.follow()) as deliveries:
            async for delivered in deliveries:
                if delivered is not None:
                    yield _observation(delivered)

    # --- writing

    async def write(self, write: WriteRecord, hold: TermHold | None, since_ns: int) -> int:
        """Write our name and return the revision; ``since_ns`` is when the term began.

        Raises WrongLastSequenceError, and what the store raises.
        """
        told = {_TERM: _FIRST if hold is None else str(hold.token), _SINCE: str(since_ns)}
        ack = await self._jet.publish(
            self._subject,
            self._value,
            msg_id=write.msg_id,
            headers=told,
            expected_last_subject_seq=write.expected,
        )
        return ack.seq

    async def release(self, release: DeleteRecord) -> None:
        """Delete the key; a clean end is remembered for as long as the bucket allows."""
        marks = {OPERATION_HEADER: "DEL"}
        if release.clean:
            marks[_RELEASED] = str(release.expected)
        lasting = release.clean and self._stream.config.allow_msg_ttl
        await self._jet.publish(
            self._subject,
            headers=marks,
            expected_last_subject_seq=release.expected,
            ttl="never" if lasting else None,
        )


def _observation(message: StoredMessage | Delivered) -> Observation:
    block = stored_block(message)
    if operation_of(block) == "put":
        return Observation("put", message.seq, headers.first(block or b"", headers.MSG_ID) or "")
    gave_up = int(headers.first(block or b"", _RELEASED) or 0)
    return Observation("released" if gave_up else "ended", message.seq, gave_up=gave_up)


async def open_record(
    jet: Streams, bucket: str, key: str, name: str, ttl: float | None, *, strict: bool, make: bool
) -> ElectionRecord:
    """Return the record, creating its bucket if missing and ``make``. Raises ConfigError, BucketNotFoundError."""
    shortest = _STRICT_SHORTEST_S if strict else _SHORTEST_S
    _check_ttl(f"election {bucket}/{key}", _DEFAULT_TTL_S if ttl is None else ttl, shortest)
    try:
        stream = await jet.stream(stream_of(bucket))
    except StreamNotFoundError:
        if not make:
            raise BucketNotFoundError(bucket) from None
        await _make(jet, bucket, _DEFAULT_TTL_S if ttl is None else ttl)
        stream = await jet.stream(stream_of(bucket))
    _check_bucket(bucket, stream.config, ttl, shortest)
    return ElectionRecord(jet, stream, key, name)


async def _make(jet: Streams, bucket: str, ttl: float) -> None:
    # The limit marker shows watchers an expiry, and lets the marker of a clean end outlive the TTL.
    config = new_config(bucket, {"ttl": ttl, "limit_marker_ttl": ttl, "description": "an election"})
    first = await reserve_first_token(jet, config.name)
    try:
        await jet.create_stream(msgspec.structs.replace(config, first_seq=first))
    except ApiError as error:
        # Another candidate was faster, with another TTL: its bucket is checked next.
        if error.constant != "JSStreamNameExistErr":
            raise


def _check_bucket(bucket: str, config: StreamConfig, ttl: float | None, shortest: float) -> None:
    kept = config.max_age.seconds
    if ttl is not None and abs(kept - ttl) > 1e-6:
        raise ConfigError(f"bucket {bucket!r} has a TTL of {kept:g} s, which is the term: leave ttl={ttl:g} out")
    _check_ttl(f"bucket {bucket!r}", kept, shortest)


def _check_ttl(what: str, ttl: float, shortest: float) -> None:
    if not shortest <= ttl <= _LONGEST_S:
        raise ConfigError(
            f"{what}: a TTL of {ttl:g} s; the term of an election is {shortest:g} s to {_LONGEST_S:g} s, "
            "and is the TTL of its bucket"
        )
