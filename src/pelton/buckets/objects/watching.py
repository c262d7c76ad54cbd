"""Following what becomes of objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pelton.buckets.objects.info import ObjectInfo, decoded
from pelton.buckets.objects.naming import all_metas
from pelton.buckets.objects.records import Records
from pelton.jet.ordered import OrderedReader


async def watched(records: Records, *, updates_only: bool) -> AsyncGenerator[ObjectInfo | None, None]:
    """Hand out descriptions in order, with None once where everything that was there when it began has come."""
    policy = "new" if updates_only else "last_per_subject"
    reader = OrderedReader(
        records.jet.backend,
        records.jet.runtime,
        records.stream.name,
        deliver_policy=policy,
        filter_subject=all_metas(records.bucket),
    )
    initial = await reader.begin() > 0
    deliveries = reader.read()
    try:
        if not initial:
            yield None
        async for one in deliveries:
            yield decoded(records.bucket, one.subject, one.data, revision=one.seq, time_ns=one.time_ns)
            if initial and not one.num_pending:
                initial = False
                yield None
    finally:
        await deliveries.aclose()
