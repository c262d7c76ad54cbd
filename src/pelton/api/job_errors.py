"""Errors of a job, or of the code that runs it, and how any error of one is written down."""

import os
from collections.abc import Sequence
from traceback import TracebackException
from types import TracebackType
from typing import Final

from pelton.api.errors import PeltonError, says


class JobError(PeltonError):
    """A job failed, or the code that runs it."""


class PermanentJobError(JobError):
    """Raise it in a job that can never succeed: it is not retried and becomes a dead letter at once."""


class RetryJob(JobError):  # noqa: N818 - an instruction to the worker, no failure
    """Raise it in a job to run it again after `delay` seconds (None: the queue's backoff)."""

    delay: float | None
    reason: str

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        self.delay, self.reason = delay, reason
        when = "after the queue's backoff" if delay is None else f"in {delay:g} s"
        super().__init__(f"the job asks to run again {when}{': ' if reason else ''}{reason}")


class Snooze(JobError):  # noqa: N818 - an instruction to the worker, no failure
    """Raise it in a job to give it back, and to start it again after `delay` seconds: no attempt is counted."""

    delay: float
    reason: str

    def __init__(self, delay: float, reason: str = "") -> None:
        self.delay, self.reason = delay, reason
        super().__init__(f"the job asks to be started again in {delay:g} s{': ' if reason else ''}{reason}")


class Continue(JobError):  # noqa: N818 - an instruction to the worker, no failure
    """Raise it in a job to begin anew with these arguments, under the same id and key, with an empty memory.

    Its attempts begin anew, too. Signals that it has not received stay; what it has registered to undo is dropped.
    """

    call_args: tuple[object, ...]
    call_kwargs: dict[str, object]

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.call_args, self.call_kwargs = args, kwargs
        super().__init__("the job asks to begin anew: only one that takes a JobContext can")


class Cancel(JobError):  # noqa: N818 - an instruction to the worker, no failure
    """Raise it in a job that is not wanted any more: it ends as cancelled."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the job has cancelled itself")


class Discard(JobError):  # noqa: N818 - an instruction to the worker
    """Raise it in a job that has failed, and of which no dead letter is wanted: it ends as cancelled.

    Its outcome keeps the traceback; raise it from the error, so that both can be read.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the job has discarded itself")


@says("job {job_id!r}{keyed} lost its lease{because}: stop now and commit nothing, it is run again")
class LeaseLostError(JobError):
    """The job's lease is lost: another worker may run it, so this run must stop and must not commit."""

    job_id: str
    key: str = ""
    reason: str = ""


@says("job {job_id!r}{keyed} was cancelled{because}: enqueue it again if still wanted")
class JobCancelledError(JobError):
    """The job was cancelled while, or before, it ran."""

    job_id: str
    key: str = ""
    reason: str = ""


class UnknownJobError(JobError):
    """No job of this name is registered with the worker."""

    name: str
    known: tuple[str, ...]

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(
            f"no job is named {name!r} (known: {', '.join(self.known) or 'none'}): "
            "import the module that registers it before work()"
        )


class JobFailedError(JobError):
    """A job has no result because it failed or was cancelled, as `state` says.

    `error` is what its last attempt raised, `traceback` where, as text (also a note of this exception).
    """

    job_id: str
    name: str
    state: str
    error: str
    traceback: str

    def __init__(self, job_id: str, name: str, state: str, error: str = "", traceback: str = "") -> None:
        self.job_id, self.name, self.state, self.error, self.traceback = job_id, name, state, error, traceback
        how = "failed" if state == "failed" else f"ended as {state}"
        then = "its dead letter can be redriven" if state == "failed" else "enqueue it again if still wanted"
        why = error or "no error was given"
        # The error of a job that was cancelled says so itself.
        told = why if why.endswith(then) else f"{why}; {then}"
        super().__init__(f"job {job_id!r} ({name!r}) {how} and has no result: {told}")
        if traceback:
            self.add_note(f"where job {job_id!r} failed, in its worker:\n{traceback.rstrip()}")


@says("queue {queue!r} has no job {job_id!r}: {reason}; see jobs(), history() and dead_letters() for its jobs")
class JobNotFoundError(JobError):
    """The queue has no such job (any more); `queue` and `job_id` name it, `reason` says why."""

    queue: str
    job_id: str
    reason: str


@says(
    "queue {queue!r} has no flow {flow_id!r}: it was never enqueued here, or has ended so long ago that its "
    "records were removed; see flows()"
)
class FlowNotFoundError(JobError):
    """The queue has no such flow (any more); `queue` and `flow_id` name it."""

    queue: str
    flow_id: str


@says(
    "job {job_id!r} of queue {queue!r} was not moved, because it is {state}: only a job that no worker holds and "
    "that has not ended can be moved; cancel it, or enqueue another one"
)
class JobNotMovedError(JobError):
    """A job was not moved to another queue: its `state` in its `queue` does not allow it."""

    queue: str
    job_id: str
    state: str


@says(
    "job {job_id!r} of queue {queue!r} is the same unique job: wait for it, cancel it, or enqueue without "
    "on_duplicate='raise' to get its handle"
)
class DuplicateJobError(JobError):
    """A unique job was not enqueued into its `queue`, because there is one already: `job_id`."""

    queue: str
    job_id: str


@says("there is no queue {queue!r}: check its name, see jet.queue_names(), or open it without create=False to make it")
class QueueNotFoundError(JobError):
    """There is no `queue` of this name, and it was not to be made."""

    queue: str


@says(
    "queue {queue!r} was not deleted, because workers hold {running} of its jobs: stop them first, or pass "
    "force=True, and what these jobs do is lost"
)
class QueueInUseError(JobError):
    """The `queue` has `running` jobs, so it was not deleted."""

    queue: str
    running: int


@says(
    "job {job_id!r} ({name!r}) took longer than its timeout of {seconds:g} s and was stopped: raise timeout, or "
    "let the job do less"
)
class JobTimeoutError(JobError, TimeoutError):
    """An attempt of a job took longer than its `timeout`, `seconds`; its ``__cause__`` shows where the job was."""

    job_id: str
    name: str
    seconds: float


@says("job {job_id!r} ({name!r}): {step} took longer than its timeout of {seconds:g} s and was stopped: raise timeout")
class StepTimeoutError(JobError, TimeoutError):
    """A step of a job, or an undo, took longer than its `timeout`, `seconds`; ``__cause__`` shows where it was."""

    job_id: str
    name: str
    step: str
    seconds: float


@says("job {job_id!r} ({name!r}) has received no signal {signal!r} within {seconds:g} s: give wait_for() a default")
class SignalTimeoutError(JobError, TimeoutError):
    """A job has waited for a `signal` for `seconds`, and none has come."""

    job_id: str
    name: str
    signal: str
    seconds: float


@says("job {job_id!r} of queue {queue!r} has ended ({state}) and receives no signals: enqueue another job")
class JobEndedError(JobError):
    """A signal was sent to a job that has ended: `state` says how."""

    queue: str
    job_id: str
    state: str


class JobCrashedError(JobError):
    """The child process that ran a job has died; `exit_code` is negative for a signal, such as -11."""

    job_id: str
    name: str
    exit_code: int | None

    def __init__(self, job_id: str, name: str, exit_code: int | None) -> None:
        self.job_id, self.name, self.exit_code = job_id, name, exit_code
        how = (
            f"was killed by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exited ({exit_code})"
        )
        super().__init__(
            f"the process of job {job_id!r} ({name!r}) {how} while the job ran: look at what the function does there"
        )


@says("job {name!r}: its result can't be stored as JSON: {reason}; return what its function declares")
class JobResultError(JobError):
    """The result of a job cannot be stored, or not as the type that its function declares."""

    name: str
    reason: str


class JobArgumentsError(JobError):
    """The arguments do not fit the job's signature, or cannot be stored.

    `is_stored`: they are those of a stored job, which waits for a worker whose version of the function takes them.
    """

    name: str
    reason: str
    is_stored: bool

    def __init__(self, name: str, reason: str, *, is_stored: bool = False) -> None:
        self.name, self.reason, self.is_stored = name, reason, is_stored
        super().__init__(
            f"job {name!r} cannot take what is stored: {reason}; it waits for a worker whose function does"
            if is_stored
            else f"job {name!r} cannot take these arguments: {reason}; pass what it declares"
        )


# --- errors as texts that can be stored

_QUEUE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "queue", "")
_LONGEST_TEXT: Final = 8192
_LONGEST_TRACE: Final = 8192
_LONGEST_LINE: Final = 1024
_MOST_FRAMES: Final = 50
_CUT: Final = "[...]\n"


def frames_of_job(error: BaseException) -> TracebackType | None:
    """Return where a job raised an error, without the worker's own frames; None for an error of the worker itself."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_QUEUE):
        frames = frames.tb_next
    return frames


def is_raised(error: BaseException) -> bool:
    """Whether a traceback would show where a job raised an error, or its cause."""
    return frames_of_job(error) is not None or error.__cause__ is not None


def describe(error: BaseException) -> str:
    """Return an error as text that can be stored: its class and its message, truncated if it is too long."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as failed:  # an error's own code may be wrong as well
        text = f"(its message can't be read: {type(failed).__name__})"
    text = _storable(text[:_LONGEST_TEXT])
    return f"{name}: {text}" if text else name


def trace(error: BaseException) -> str:
    """Return an error's traceback as text that can be stored, with its causes, starting at the job's own function.

    A long one keeps its end, where the error is. Empty for an error that was never raised.
    """
    if not is_raised(error):
        return ""
    try:
        # A negative limit keeps the innermost frames.
        lines = TracebackException(type(error), error, frames_of_job(error), limit=-_MOST_FRAMES, compact=True).format()
        cut = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}{_CUT}" for line in lines]
    except BaseException:  # an error's own code may be wrong as well
        return ""
    text = "".join(cut)
    return _storable(text if len(text) <= _LONGEST_TRACE else _CUT + text[len(_CUT) - _LONGEST_TRACE :])


def _storable(text: str) -> str:
    """Escape lone surrogates, which names of files may hold and JSON can't."""
    return text.encode(errors="backslashreplace").decode()
