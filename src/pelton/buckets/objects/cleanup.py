"""Removes the remains of puts whose process died: chunks that no description names.

Design: Chunks without a description may belong to a put in progress. So only those are removed whose last one is older
than the given age; and first a mark is stored after that last one, on the condition that it still is the last. A put
that resumes counts its chunks and describes them on the same condition (:mod:`upload`): either it was faster and the
mark is refused, or it fails. A put of another client does not check this: for it only the age protects.
"""

from __future__ import annotations

from pelton.api import LimitError, WrongLastSequenceError, parse_rfc3339
from pelton.buckets.objects.naming import chunk_subject
from pelton.buckets.objects.records import Records
from pelton.buckets.objects.watching import watched
from pelton.jet.readable import at_leader


async def cleaned(records: Records, older_than_ns: int) -> int:
    """Remove orphaned chunks, and return of how many objects."""
    # Before the descriptions are read: objects described in between are then found there.
    info = await records.stream.info(subjects_filter=chunk_subject(records.bucket, ">"))
    subjects = set(info.state.subjects or ())
    if not subjects:
        return 0
    subjects -= await _described(records)
    # By the server's clock, which is also that of the chunks.
    limit = (parse_rfc3339(info.ts) if info.ts else records.jet.runtime.clock.now()) - older_than_ns
    return sum([await _removed(records, subject, limit) for subject in sorted(subjects)])


async def _described(records: Records) -> set[str]:
    found: set[str] = set()
    metas = watched(records, is_strict=True)
    try:
        async for meta in metas:
            if meta is None:
                break
            if not meta.deleted:
                found.add(chunk_subject(records.bucket, meta.nuid))
    finally:
        await metas.aclose()
    return found


async def _removed(records: Records, subject: str, limit: int) -> bool:
    # A replica may not know how far a put has come.
    last = await at_leader(records.jet.backend, records.stream.name, last_by_subj=subject)
    if last is None or last.time_ns > limit:
        return False
    try:
        await records.jet.publish(subject, expected_last_subject_seq=last.seq)
    except WrongLastSequenceError:
        return False
    except LimitError:
        # A full store cannot be marked, but needs cleaning most.
        pass
    await records.purge_chunks(subject.rpartition(".")[2])
    return True
