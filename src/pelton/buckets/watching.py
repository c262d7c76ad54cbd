"""Following a bucket: what its keys hold, a mark where that ends, and what comes then."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import msgspec

from pelton.buckets.entry import Entry
from pelton.jet import Streams
from pelton.jet.ordered import OrderedReader

T = TypeVar("T")


async def watched(
    decoded: Callable[[str, int, int, bytes | None, bytes | None], Entry[T]],
    jet: Streams,
    stream: str,
    fields: dict[str, Any],
    *,
    meta_only: bool,
) -> AsyncGenerator[Entry[T] | None, None]:
    """Hand out entries in order, with None once where everything that was there when it began has come.

    ``decoded`` makes an entry of subject, sequence, time, headers and data (None where values are left out).
    """
    reader = OrderedReader(jet.backend, jet.runtime, stream, **fields)
    initial = await reader.begin() > 0
    deliveries = reader.read()
    try:
        if not initial:
            yield None
        async for one in deliveries:
            data = None if meta_only else one.data
            entry = decoded(one.subject, one.seq, one.time_ns, one.headers, data)
            yield msgspec.structs.replace(entry, delta=one.num_pending)
            if initial and not one.num_pending:
                initial = False
                yield None
    finally:
        await deliveries.aclose()
