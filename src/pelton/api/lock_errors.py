"""Errors of locks and semaphores."""

from pelton.api.errors import PeltonError, says


class LockError(PeltonError):
    """A lock or semaphore failed; `lock` names it."""

    def __init__(self, lock: str, text: str) -> None:
        self.lock = lock
        super().__init__(text)


@says("{lock} could not be acquired within {timeout:g} s: others hold it; wait longer or do without")
class LockTimeoutError(LockError, TimeoutError):
    """The lock could not be acquired within `timeout` seconds; nothing is held."""

    lock: str
    timeout: float


@says("{lock} was lost while held with token {token}{because}: others may hold it, so write nothing")
class LockLostError(LockError):
    """The lease with the fencing `token` was lost: another holder may have the lock by now, so stop."""

    lock: str
    token: int
    reason: str = ""


@says("{lock} is not held here: it was already released, or never acquired by this caller")
class LockNotHeldError(LockError):
    """The lock cannot be released because it is not held, or not any more."""

    lock: str


@says(
    "{lock} is already held by this caller (token {token}), which would wait for itself: locks are not "
    "re-entrant; pass on what acquire() returned instead"
)
class LockReentryError(LockError):
    """The caller already holds this lock, with `token`, and would wait for itself for ever."""

    lock: str
    token: int
