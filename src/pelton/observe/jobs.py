"""What one job was called with, and what its attempts have raised."""

from __future__ import annotations

from contextlib import suppress

from pelton.api import StreamNotFoundError
from pelton.api.json_values import UNREADABLE
from pelton.connect import Jet
from pelton.observe.queues import dead_letter, job_details
from pelton.observe.summaries import JobDetails
from pelton.queue import AttemptError
from pelton.queue.backing.scan import FailedAttempts, unfinished_job
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.states import decode_envelope


async def job_with_details(jet: Jet, queue: str, job_id: str) -> JobDetails:
    """Return a job with its arguments and the errors of its attempts. Raises JobNotFoundError, QueueNotFoundError."""
    info, names = await job_details(jet, queue, job_id), QueueNames(queue)
    letter = await dead_letter(jet, queue, job_id)
    errors = info.outcome.errors if info.outcome is not None else await _errors(jet, names, job_id)
    arguments = bytes(letter.envelope.args) if letter is not None else await _arguments(jet, names, job_id)
    return JobDetails(job=info, arguments=arguments, errors=errors, is_dead=letter is not None)


async def _errors(jet: Jet, names: QueueNames, job_id: str) -> tuple[AttemptError, ...]:
    with suppress(StreamNotFoundError):
        attempt = await FailedAttempts(jet, names).last(job_id)
        return attempt.errors if attempt is not None else ()
    return ()


async def _arguments(jet: Jet, names: QueueNames, job_id: str) -> bytes | None:
    stored = await unfinished_job(await jet.stream(names.jobs), names, job_id)
    if stored is not None:
        with suppress(*UNREADABLE):
            return bytes(decode_envelope(stored.data).args)
    return None
