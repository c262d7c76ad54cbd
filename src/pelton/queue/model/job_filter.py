"""Selecting jobs by what they are: for the views, and for what is done to many jobs at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConfigError
from pelton.queue.model.checks import checked_text
from pelton.queue.model.naming import encode_key, encode_tenant

if TYPE_CHECKING:
    from pelton.queue.model.states import DeadLetter, JobInfo

_UNFINISHED: Final = ("pending", "scheduled", "held", "running", "retrying")


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs: of a ``state``, a ``key``, a ``job`` (its name), a ``tenant``; empty for any."""

    state: str = ""
    key: str = ""
    job: str = ""
    tenant: str = ""

    def has(self, info: JobInfo) -> bool:
        """Whether a job is selected."""
        return (
            (not self.state or info.state == self.state)
            and (not self.key or info.key == self.key)
            and (not self.job or info.job == self.job)
            and (not self.tenant or info.tenant == self.tenant)
        )

    def has_letter(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is selected."""
        outcome = letter.outcome
        return (not self.key or outcome.key == self.key) and (not self.job or outcome.job == self.job)


ALL_JOBS: Final = JobFilter()


def job_filter(
    queue: str, key: object = None, job: object = None, state: object = None, tenant: object = None
) -> JobFilter:
    """Return a checked filter from what a user passes; None for any. Raises ConfigError."""
    if state is not None and state not in _UNFINISHED:
        raise ConfigError(
            f"queue {queue!r}: no unfinished job is {state!r}; they are {', '.join(_UNFINISHED)}, and history() has "
            "those that have ended"
        )
    if key is not None:
        encode_key(key)  # type: ignore[arg-type]  # it checks that, too
    if tenant is not None:
        encode_tenant(tenant)  # type: ignore[arg-type]
    return JobFilter(
        state="" if state is None else str(state),
        key="" if key is None else str(key),
        job="" if job is None else checked_text(f"queue {queue!r}: job", job),
        tenant="" if tenant is None else str(tenant),
    )
