"""Watches a bucket: current entries, a marker after them, then changes; and lists current messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

import msgspec

from pelton.api import Delivered, LastHeaders, MessageNotFoundError, StoredMessage, StreamLastHeaders
from pelton.buckets.coding import Coding
from pelton.buckets.entry import Entry
from pelton.jet import Stream, Streams
from pelton.jet.ordered import OrderedReader

T = TypeVar("T")
# What a store that is only read can answer.
_POLICIES: Final = ("all", "last_per_subject")


async def watched(
    jet: Streams, stream: str, coding: Coding[T], filters: Sequence[str], *, meta_only: bool, **fields: Any
) -> AsyncGenerator[Entry[T] | None, None]:
    """Yield entries in order, and None once after all that existed at the start."""
    following = followed(jet, stream, filters, headers_only=meta_only, **fields)
    try:
        async for one in following:
            if one is None:
                yield None
                continue
            data = None if meta_only else one.data
            entry = coding.entry(one.subject, one.seq, one.time_ns, one.headers, data)
            yield msgspec.structs.replace(entry, delta=one.num_pending) if one.num_pending else entry
    finally:
        await following.aclose()


async def followed(
    jet: Streams, stream: str, filters: Sequence[str], **fields: Any
) -> AsyncGenerator[Delivered | None, None]:
    """Yield messages in order, and None once after all that existed at the start.

    Of a store that is only read, nothing can be followed: after that None, it raises StoreReadOnlyError.
    """
    if jet.backend.planning.read_only and fields.get("deliver_policy") in _POLICIES:
        async for stored in _looked_up(jet, stream, filters, fields["deliver_policy"]):
            yield stored
        yield None
    fields |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": filters}
    async with aclosing(OrderedReader(jet.backend, jet.runtime, stream, **fields).follow()) as deliveries:
        async for one in deliveries:
            yield one


async def _looked_up(jet: Streams, stream: str, filters: Sequence[str], policy: str) -> AsyncGenerator[Delivered, None]:
    """Yield all messages of some filters, or the last ones of the subjects, without a consumer."""
    handle = await jet.stream(stream)
    if policy == "all":
        sequences = [one.seq for text in filters async for one in _all_of(handle, text)]
    else:
        sequences = [head.seq async for page in heads(jet, stream, filters) for head in page]
    ordered = sorted(sequences)
    for number, seq in enumerate(ordered, 1):
        with suppress(MessageNotFoundError):
            one = await handle.get_message(seq)
            left = len(ordered) - number
            yield Delivered(one.subject, seq, one.time_ns, one.hdrs or None, one.data, number, 1, left, stream, "")


async def _all_of(handle: Stream, subject: str) -> AsyncGenerator[StoredMessage, None]:
    seq = 1
    with suppress(MessageNotFoundError):
        while True:
            one = await handle.get_next_message(subject, seq)
            yield one
            seq = one.seq + 1


async def present(jet: Streams, stream: str, filters: Sequence[str], **fields: Any) -> AsyncGenerator[Delivered, None]:
    """Yield the current messages: the last ones of the subjects, unless ``fields`` say otherwise."""
    following = followed(jet, stream, filters, **{"deliver_policy": "last_per_subject", **fields})
    try:
        async for one in following:
            if one is None:
                return
            yield one
    finally:
        await following.aclose()


async def heads(jet: Streams, stream: str, filters: Sequence[str]) -> AsyncGenerator[Sequence[LastHeaders], None]:
    """Yield the last messages of the subjects, without payloads, many at a time.

    A subject that exists during the whole iteration comes once.
    """
    if StreamLastHeaders not in jet.backend.planning.own_verbs:
        found = present(jet, stream, filters, headers_only=True)
        try:
            async for one in found:
                yield (LastHeaders(one.subject, one.seq, one.headers),)
        finally:
            await found.aclose()
        return
    request = StreamLastHeaders(stream=stream, filters=tuple(filters))
    while page := (await jet.backend.call(request)).heads:
        yield page
        request = msgspec.structs.replace(request, after=page[-1].subject)
        # Nothing above waits for I/O: without this, others would have to wait for the last page.
        await asyncio.sleep(0)
