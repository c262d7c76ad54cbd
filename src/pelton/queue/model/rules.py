"""How a job is retried: its rules, and the checks of what a user passes for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import Backoff, ConfigError
from pelton.queue.model.checks import seconds, whole

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.runtime import Random

BackoffRule = Backoff | Sequence[float | timedelta] | Callable[[int, BaseException], float]
"""How long to wait before the next attempt.

A schedule; seconds after each attempt, of which the last repeats; or a function of the attempt, from 1, and its error.
"""

_LONGEST_WRONG: Final = 1024
DEFAULT_MAX_ATTEMPTS: Final = 5
DEFAULT_BACKOFF: Final = Backoff(base=1.0, factor=2.0, cap=600.0, jitter=0.2)


class JobRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is retried.

    Attempts in all, the wait between them, errors that are not retried, seconds per attempt.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    """How many attempts in all."""
    backoff: BackoffRule = DEFAULT_BACKOFF
    """The wait before each other attempt, in seconds."""
    permanent: tuple[type[BaseException], ...] = ()
    """Errors that are not retried."""
    timeout: float | None = None
    """How long an attempt may take, in seconds; None: any time."""

    def check(self, what: str) -> None:
        """Raise ConfigError for rules that cannot be kept; ``what`` names what the rules are for."""
        whole(f"{what}: max_attempts", self.max_attempts)
        if self.timeout is not None and seconds(f"{what}: timeout", self.timeout) <= 0:
            raise ConfigError(f"{what}: timeout is {self.timeout:g} s; it must be more than 0, or None")
        self._check_backoff(what)
        for kind in self.permanent:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"{what}: permanent holds {kind!r}; it takes exception classes")

    def _check_backoff(self, what: str) -> None:
        backoff = self.backoff
        if isinstance(backoff, Backoff) or callable(backoff):
            return
        if isinstance(backoff, str | bytes) or not isinstance(backoff, Sequence) or not backoff:
            raise ConfigError(
                f"{what}: backoff is {backoff!r}; give a pelton.Backoff(base=seconds), a list of seconds, or a "
                "function of the attempt and its error"
            )
        for each in backoff:
            seconds(f"{what}: backoff", each)

    def delay_after(self, attempt: int, error: BaseException, random: Random) -> tuple[float, str]:
        """Return how many seconds to wait after a failed attempt, and what is wrong with the rule, if anything is."""
        backoff = self.backoff
        if isinstance(backoff, Backoff):
            return backoff.delay(attempt, random), ""
        if not callable(backoff):
            return seconds("backoff", backoff[min(attempt, len(backoff)) - 1]), ""
        try:
            return seconds("it", backoff(attempt, error)), ""
        except Exception as wrong:  # a program's own code may raise anything
            wrong_text = f"its backoff failed, and the default was taken: {type(wrong).__name__}: {wrong}"
            return DEFAULT_BACKOFF.delay(attempt, random), wrong_text[:_LONGEST_WRONG]


def job_rules(
    what: str,
    max_attempts: int,
    backoff: BackoffRule,
    permanent: type[BaseException] | Sequence[type[BaseException]],
    timeout: Seconds | None,
) -> JobRules:
    """Return checked rules from what a user passes. Raises ConfigError, which names ``what`` they are for."""
    if isinstance(permanent, type):
        permanent = (permanent,)
    elif not isinstance(permanent, Sequence | AbstractSet):
        raise ConfigError(f"{what}: permanent is {permanent!r}; it takes exception classes")
    limit = None if timeout is None else seconds(f"{what}: timeout", timeout)
    rules = JobRules(max_attempts=max_attempts, backoff=backoff, permanent=tuple(permanent), timeout=limit)
    rules.check(what)
    return rules
