"""Whether a job of a schedule became due while an earlier one had not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import MessageNotFoundError
from pelton.queue.model.states import LastRun

if TYPE_CHECKING:
    from pelton.api import Delivered
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.model.naming import QueueNames

# A run that has ended so much later than now was recorded by a clock that has been corrected since.
_CLOCKS_DIFFER_NS: Final = 2_000_000_000
_decode: Final = msgspec.json.Decoder(LastRun).decode


async def has_overlap(queue: QueueContext, delivered: Delivered) -> bool:
    """Whether an earlier job of the same schedule is there, or has ended after this one was stored."""
    jet, names = queue.jet, queue.names
    jobs, leaf = await jet.stream(names.jobs), names.leaf_of(delivered.subject)
    for subject in _places(names, delivered.subject, leaf):
        try:
            if (await jobs.get_next_message(subject, 1)).seq < delivered.seq:
                return True
        except MessageNotFoundError:
            # A replica that does not have it yet has no earlier one either.
            continue
    # In this order: the job is removed with, or after, the note that it has ended.
    control = await jet.stream(names.control)
    try:
        ran = await control.get_last_message(names.last_run(leaf))
    except MessageNotFoundError:
        return False
    if ran.time_ns > queue.time.now() + _CLOCKS_DIFFER_NS:
        return False
    return ran.time_ns > delivered.time_ns and int(_decode(ran.data).id) < delivered.seq


def _places(names: QueueNames, subject: str, leaf: str) -> tuple[str, ...]:
    """Return where earlier jobs may be: their schedule may have had another priority, or no tenant."""
    if not names.is_free(subject):
        return names.places(names.key_of_job(subject), leaf)
    tenant = names.tenant_of(subject) if names.has_tenant(subject) else ""
    return (*names.places("", leaf), *(names.places(tenant, leaf) if tenant else ()))
