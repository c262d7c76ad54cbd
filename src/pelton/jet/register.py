"""Records that are compared and set: each is only written if it is still the one that its writer has seen.

A publish whose reply is lost is repeated with the same message id, and counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Generic, NamedTuple, Self, TypeVar

from pelton.api import Backend, PeltonError, WrongLastSequenceError, headers
from pelton.jet.readable import at_leader

R = TypeVar("R")


class MovedError(PeltonError):
    """A record has changed since it was seen; ``seq`` is the present one if the server reports it."""

    def __init__(self, key: str, seq: int | None) -> None:
        super().__init__(f"another process has changed the record {key!r}")
        self.seq = seq


class StoredRecord(NamedTuple, Generic[R]):
    """A record, and its sequence in the stream; None and 0 if there is none."""

    seq: int
    record: R | None


class Register(Generic[R]):
    """The records of a stream, by key: what follows ``prefix`` in their subjects.

    ``ttl`` returns for how many seconds a record is to be kept; 0: for ever.
    """

    def __init__(
        self,
        backend: Backend,
        stream: str,
        prefix: str,
        encode: Callable[[R], bytes],
        decode: Callable[[bytes], R],
        ttl: Callable[[R], int],
    ) -> None:
        self._backend = backend
        self._stream, self._prefix = stream, prefix
        self._encode, self._decode, self._ttl = encode, decode, ttl

    def over(self, backend: Backend) -> Self:
        """Return the same records over another connection."""
        other = copy(self)
        other._backend = backend
        return other

    async def read(self, key: str) -> StoredRecord[R]:
        """Return the present record, from the stream's leader."""
        found = await at_leader(self._backend, self._stream, last_by_subj=self._prefix + key)
        return StoredRecord(0, None) if found is None else StoredRecord(found.seq, self._decode(found.data))

    async def write(self, key: str, record: R, seen: int) -> int:
        """Replace a record and return its sequence. Raises MovedError if ``seen`` is not the present one."""
        block = {headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(seen)}
        if ttl := self._ttl(record):
            block[headers.TTL] = f"{ttl}s"
        try:
            ack = await self._backend.publish(self._prefix + key, self._encode(record), headers.encode(block))
        except WrongLastSequenceError as error:
            raise MovedError(key, error.seq) from None
        return ack.seq
