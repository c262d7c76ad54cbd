"""One statement per behaviour, for every backend; a real nats-server is the oracle.

``CASES`` is the table. A test suite runs each case on an empty store or server:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    async def test_conformance(case, jet): await case.run(jet)
"""

from pelton.testing.conformance import (  # noqa: F401  # each fills the table
    accounts,
    acks,
    batch_parts,
    batches,
    bucket_codecs,
    bucket_copies,
    bucket_times,
    buckets,
    changes,
    compression,
    consumer_changes,
    consumer_config,
    consumer_limits,
    consumers,
    counters,
    dedupe,
    delivery,
    direct,
    elsewhere,
    events,
    expectations,
    faults,
    fetch,
    groups,
    interest,
    iterating,
    limits,
    listening,
    mirrors,
    object_entries,
    objects,
    publishing,
    purge,
    push,
    reading,
    redelivery,
    republish,
    rollups,
    schedules,
    sealing,
    settings,
    sourcing,
    streams,
    transforms,
    ttl,
    vanishing,
)
from pelton.testing.conformance.table import CASES, Case

__all__ = ["CASES", "Case"]
