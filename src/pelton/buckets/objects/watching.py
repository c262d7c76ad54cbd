"""Watches objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pelton.api import ObjectDamagedError
from pelton.buckets.objects.info import ObjectInfo, decoded
from pelton.buckets.objects.naming import all_metas
from pelton.buckets.objects.records import Records
from pelton.buckets.watching import followed


async def watched(
    records: Records, *, updates_only: bool = False, is_strict: bool = False
) -> AsyncGenerator[ObjectInfo | None, None]:
    """Yield descriptions in order, and None once after all that existed at the start.

    Unreadable ones are skipped, as other clients do; if ``is_strict``, they raise ObjectDamagedError.
    """
    policy = "new" if updates_only else "last_per_subject"
    following = followed(records.jet, records.stream.name, [all_metas(records.bucket)], deliver_policy=policy)
    try:
        async for one in following:
            if one is None:
                yield None
                continue
            try:
                info = decoded(records.bucket, one.subject, one.data, revision=one.seq, time_ns=one.time_ns)
            except ObjectDamagedError:
                if is_strict:
                    raise
                continue
            yield info
    finally:
        await following.aclose()
