"""Errors of locks and semaphores."""

from pelton.api.errors import PeltonError


class LockError(PeltonError):
    """A lock or semaphore failed; `lock` names it."""

    def __init__(self, lock: str, text: str) -> None:
        self.lock = lock
        super().__init__(text)


class LockTimeoutError(LockError, TimeoutError):
    """The lock could not be acquired within `timeout` seconds; nothing is held."""

    def __init__(self, lock: str, timeout: float) -> None:
        self.timeout = timeout
        super().__init__(
            lock, f"{lock} could not be acquired within {timeout:g} s: others hold it; wait longer or do without"
        )


class LockLostError(LockError):
    """The lease with the fencing `token` was lost: another holder may have the lock by now, so stop."""

    token: int
    reason: str

    def __init__(self, lock: str, token: int, reason: str = "") -> None:
        self.token, self.reason = token, reason
        because = f" ({reason})" if reason else ""
        super().__init__(
            lock, f"{lock} was lost while held with token {token}{because}: others may hold it, so write nothing"
        )


class LockNotHeldError(LockError):
    """The lock cannot be released because it is not held, or not any more."""

    def __init__(self, lock: str) -> None:
        super().__init__(lock, f"{lock} is not held here: it was already released, or never acquired by this caller")


class LockReentryError(LockError):
    """The caller already holds this lock, with `token`, and would wait for itself for ever."""

    def __init__(self, lock: str, token: int) -> None:
        self.token = token
        super().__init__(
            lock,
            f"{lock} is already held by this caller (token {token}), which would wait for itself: "
            "locks are not re-entrant; pass on what acquire() returned instead",
        )
