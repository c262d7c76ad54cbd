"""Errors of locks and semaphores."""

from pelton.api.errors import PeltonError


class LockError(PeltonError):
    """Something about a lock or semaphore; `lock` names it."""

    def __init__(self, lock: str, text: str) -> None:
        self.lock = lock
        super().__init__(text)


class LockTimeoutError(LockError, TimeoutError):
    """It could not be had within `timeout` seconds; nothing is held."""

    def __init__(self, lock: str, timeout: float) -> None:
        self.timeout = timeout
        super().__init__(
            lock, f"{lock} could not be had within {timeout:g} s: others hold it; wait longer or go without"
        )


class LockLostError(LockError):
    """The lease of what had the fencing `token` was lost: somebody else may hold the lock by now, so stop."""

    def __init__(self, lock: str, token: int, reason: str = "") -> None:
        self.token, self.reason = token, reason
        because = f" ({reason})" if reason else ""
        super().__init__(
            lock, f"{lock} was lost while held with token {token}{because}: somebody else may hold it, so write nothing"
        )


class LockNotHeldError(LockError):
    """What is not held, or not any more, cannot be released."""

    def __init__(self, lock: str) -> None:
        super().__init__(lock, f"{lock} is not held here: it was released already, or never acquired by this caller")


class LockReentryError(LockError):
    """The caller holds this lock already, with `token`, and would wait for itself for ever."""

    def __init__(self, lock: str, token: int) -> None:
        self.token = token
        super().__init__(
            lock,
            f"{lock} is held by this very caller already (token {token}), who would wait for itself: "
            "locks are not re-entrant; pass what acquire() returned on instead",
        )
