"""What a queue stores, and the states of a job.

The states and what moves a job between them (goalpost's words in brackets)::

    enqueue            -> pending    [uack]   stored in the queue's stream, not started
    enqueue delay, at  -> scheduled           stored as a schedule of the queue's stream
    scheduled falls due -> pending
    pending  take late -> expired             its ttl is over: it is not started
    pending  take      -> pending             taken by one worker, under a lease: no attempt
    pending  limit     -> held                a limit holds it back: it waits in the worker, or is given back
    pending  begin     -> running    [uack]   its function is called: an attempt
    running  return    -> completed  [ack]    moved to the history with its result
    running  raise     -> retrying   [nack]   given back, due after a backoff; attempts are counted
    running  raise     -> failed     [failed] permanent error, or the last attempt: dead letters and history
    running  raise Cancel, Discard, JobCancelledError -> cancelled
    running  raise Snooze, sleep -> scheduled given back, due after a delay: no attempt
    running  raise Continue -> pending        begins anew, with an empty memory: its attempts too
    running  wait_for, call -> waiting        given back until a signal comes, or its time is over: no attempt
    pending  no such code -> stuck            its worker's code has not what it needs: given back, no attempt
    running  worker dies -> pending           the lease expires, another worker takes it: the attempt has failed
    running  worker stops -> pending          handed back: no attempt
    retrying backoff passes -> pending

A job's id is the sequence of its message in the queue's stream; a scheduled job, whose message is stored again when it
falls due, has an id of its own (``job_message.py``). What becomes of a job after an attempt is
:data:`AFTER_ATTEMPT`, by which ``decide.py`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from pelton.api import AckOp, JobFailedError

JobState = Literal[
    "pending", "scheduled", "waiting", "stuck", "held", "running", "retrying",
    "completed", "failed", "cancelled", "expired",
]  # fmt: skip
Ending = Literal["completed", "failed", "cancelled", "expired"]
ENDINGS: Final[tuple[Ending, ...]] = ("completed", "failed", "cancelled", "expired")

NOTHING: Final = msgspec.Raw(b"null")
"""The result of a job that returns none."""

AttemptEnd = Literal[
    "return",
    "error",
    "permanent error",
    "last attempt",
    "refused",
    "deaths",
    "Cancel",
    "Discard",
    "too late",
    "skipped",
]
"""How an attempt ends that is not handed back.

``refused``: its messages can never be stored; ``deaths``: the workers of all its attempts died; ``too late``: it was
not started, because the job's time to live was over; ``skipped``: not started, because an earlier run of its schedule
had not ended.
"""

AFTER_ATTEMPT: Final[Mapping[AttemptEnd, Ending | Literal["retrying"]]] = {
    "return": "completed",
    "error": "retrying",
    "permanent error": "failed",
    "last attempt": "failed",
    "refused": "failed",
    "deaths": "failed",
    "Cancel": "cancelled",
    "Discard": "cancelled",
    "too late": "expired",
    "skipped": "cancelled",
}


class Timetable(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """When the jobs of a schedule, ``name``, are due: by ``cron`` (six fields) in a ``timezone``, or ``every`` seconds.

    ``overlap``: whether one that became due while an earlier one had not ended is started (``allow``), or not.
    """

    name: str
    cron: str = ""
    timezone: str = ""
    every: float = 0.0
    overlap: str = "skip"


class FlowPlace(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Which node of a flow a job is; ``wanted``: its result is an argument of another node.

    That of a job which another one has called is the number of the call; its flow names the queue and the job.
    """

    flow: str
    node: int
    wanted: bool = False

    @property
    def caller(self) -> tuple[str, str] | None:
        """The queue and the id of the job that has called this one; None for a node of a flow."""
        queue, of_call, job_id = self.flow.partition("/")
        return (queue, job_id) if of_call else None


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A job as stored in the queue: which function, with which arguments (JSON), under which key.

    ``id`` is set for a job whose id is not the sequence of its message. Times are wall nanoseconds, 0 if there is none:
    when a scheduled job falls ``due``, when a job that has not started ``expires``, and until when no other one of a
    unique job may be enqueued although it has ended. A job of a schedule has its ``timetable``, and one of a flow its
    place there. ``meta`` is the program's own.
    """

    job: str
    args: msgspec.Raw
    key: str = ""
    redriven_from: str = ""
    id: str = ""
    due: int = 0
    expires: int = 0
    unique_until: int = 0
    timetable: Timetable | None = None
    meta: dict[str, str] = {}
    flow: FlowPlace | None = None
    priority: int = 0
    tenant: str = ""


_OF_FLOW: Final = "flow:"
decode_stored: Final = msgspec.json.Decoder(Envelope).decode
_encode_envelope: Final = msgspec.json.Encoder().encode


def decode_envelope(data: bytes) -> Envelope:
    """Return a job from its message. Raises msgspec.DecodeError, msgspec.ValidationError."""
    envelope = decode_stored(data)
    return envelope if envelope.flow is None else with_own_name(envelope)


def with_own_name(envelope: Envelope) -> Envelope:
    """Return a job of a flow by its own name: it is stored under another one, which older versions do not run."""
    return msgspec.structs.replace(envelope, job=envelope.job.removeprefix(_OF_FLOW))


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the message of a job.

    A job of a flow has another name there: a worker of a version without flows would end it, and its flow never learn
    of it. So it gives the job back, as one that it does not know.
    """
    if envelope.flow is not None:
        envelope = msgspec.structs.replace(envelope, job=_OF_FLOW + envelope.job)
    return _encode_envelope(envelope)


class AttemptError(msgspec.Struct, frozen=True, gc=False):
    """What one attempt of a job has raised; ``at`` in wall nanoseconds."""

    attempt: int
    at: int
    error: str
    """The kind of the error and its message."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """How a job ended. Times are wall nanoseconds; ``result`` is JSON.

    ``error`` is what its last attempt raised, ``traceback`` its traceback as text, of which a long one keeps the end.
    ``errors`` are those of all attempts, oldest first; of many, the first and the last ones. ``events`` are the last
    values that it has published, by name.
    """

    id: str
    """The job's id."""
    job: str
    """The name of its function."""
    state: Ending
    """How it ended: `completed`, `failed`, `cancelled` or `expired`."""
    key: str = ""
    """Its key, empty without one."""
    attempt: int
    """How many attempts it took, 0 if it never ran."""
    worker: str
    """Who ran the last one."""
    enqueued_at: int
    """When it was enqueued."""
    started_at: int
    """When the last attempt began, 0 if it never ran."""
    finished_at: int
    """When it ended."""
    result: msgspec.Raw = NOTHING
    error: str = ""
    traceback: str = ""
    errors: tuple[AttemptError, ...] = ()
    events: dict[str, msgspec.Raw] | None = None

    def value(self) -> object:
        """Return the decoded result of a completed job. Raises JobFailedError if it ended otherwise."""
        if self.state != "completed":
            raise JobFailedError(self.id, self.job, self.state, self.error, self.traceback)
        return msgspec.json.decode(self.result)


decode_outcome: Final = msgspec.json.Decoder(Outcome).decode


def outcome_without_worker(
    state: Ending, job_id: str, job: str, key: str, error: str, enqueued_at: int, now: int, attempt: int = 0
) -> Outcome:
    """Return how a job has ended that nobody held then."""
    return Outcome(
        id=job_id,
        job=job,
        state=state,
        key=key,
        attempt=attempt,
        worker="",
        enqueued_at=enqueued_at,
        started_at=0,
        finished_at=now,
        error=error,
    )


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A failed job with everything needed to run it again.

    ``subject`` and ``data`` are set for a message that could not be read as a job; its envelope is empty.
    """

    outcome: Outcome
    """How the job failed."""
    envelope: Envelope
    """The job as it was stored."""
    subject: str = ""
    data: bytes = b""


FOR_SIGNAL: Final = "signal"
"""The scope of a job that waits for a signal: no limit and no pause has it."""
FOR_VERSION: Final = "version"
"""The scope of a job that waits for a worker of its version."""


class PutOffDelivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The delivery of a job that was put off for a limit, a pause or a signal, by which it is recalled.

    ``scope`` says for which; a pause has no ``limit``, that of a signal is the token of its name, and that of a worker
    of a version is this. ``is_given``: the
    delivery is given back for sure; on servers, that of a job that waits for a signal may be held for a moment more.
    ``recalled_by``: the sequence of the signal by which it is recalled; ``wanted``: how many have to be there before,
    if not any.
    """

    scope: str
    limit: str
    consumer: str
    subject: str
    seq: int
    consumer_seq: int
    num_delivered: int
    token: int
    is_given: bool = True
    recalled_by: int = 0
    wanted: int = 0

    def nak(self) -> AckOp:
        """Return the ack that gives it back once more, for now."""
        return AckOp(
            kind="nak", seq=self.seq, consumer_seq=self.consumer_seq, num_delivered=self.num_delivered, token=self.token
        )


class SignalWait(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """For what a job waits, in wall nanoseconds: ``since`` it was given back last, and ``until`` when; 0: for ever."""

    signal: str
    """The name of the signal; empty for the ends of jobs that it has called."""
    since: int
    until: int = 0


class Finish(msgspec.Struct, frozen=True):
    """The job has ended. ``traceback`` is the text of the failed attempt's traceback.

    ``by_order``: an order that cancels it has ended it, which is then carried out.
    """

    state: Ending
    error: str = ""
    traceback: str = ""
    by_order: bool = False


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """What is known of a job that was tried and has not ended.

    ``attempt`` is the last one that has failed, and ``returned`` are the deliveries that were none: together, these are
    all deliveries so far. ``waits`` says why the last of them was given back, ``limit`` for which limit it is held, and
    ``put_off`` by which delivery it is recalled. ``sleeps``: its function gave it back, until a time of its own.
    ``is_stuck``: the worker's code has not what it needs. ``undo``: how it ends when it has undone what it did.
    ``version``: that of the code that goes on with it, if it has slept or waited.
    ``began``: its function has run, even if no attempt has ended.
    ``errors`` are those of all attempts, oldest first. ``job`` and ``key`` are those of the call, in the record of a
    failed attempt.
    """

    id: str
    attempt: int
    error: str = ""
    returned: int = 0
    retry_at: int = 0
    waits: str = ""
    began: bool = False
    sleeps: bool = False
    errors: tuple[AttemptError, ...] = ()
    job: str = ""
    key: str = ""
    limit: str = ""
    put_off: PutOffDelivery | None = None
    waits_for: SignalWait | None = None
    is_stuck: bool = False
    undo: Finish | None = None
    version: str = ""


class JobProgress(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How far a job says it is: a ``fraction`` from 0 to 1, a ``note``, and when, in wall nanoseconds."""

    fraction: float
    note: str = ""
    at: int = 0
    """When it was told."""


decode_progress: Final = msgspec.json.Decoder(JobProgress).decode


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """A step of a job that is done, with its result; of a sleep or a wait, when it ends, in wall nanoseconds.

    ``by`` names the attempt that has done it, and ``code`` is that of its function, if that did one thing after another
    until then: see `pelton.queue.run.steps`. ``seq`` is the sequence of the signal that was received; 0 for a wait
    that has timed out.
    """

    result: msgspec.Raw = NOTHING
    until: int = 0
    by: str = ""
    seq: int = 0
    code: str = ""


decode_step: Final = msgspec.json.Decoder(StepRecord).decode


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a job that has not ended remembers, or was sent: a line of its history. Times in wall nanoseconds.

    ``kind`` is `step`, `sleep`, `wait` or `received` (of a signal), `call` or `called` (of a job that has ended),
    `event` (it was published), `signal` (it was sent), `changed` (new code is used), `fixed` (such as the
    time that it asked for), `undo` or `undone`.
    """

    kind: str
    name: str
    """Its name; of sleeps without one and of calls, the number."""
    number: int = 0
    """Of several waits for a name, and values published under it, which one."""
    at: int
    """When it was stored."""
    until: int = 0
    """When a sleep or a wait ends."""
    seq: int = 0
    """Which signal was sent, or received; 0 for none in time."""
    value: msgspec.Raw = NOTHING
    """As JSON: the result, the signal, or what was published."""
    code: str = ""
    """Which code of its function has done it; empty where that does several things at once."""


class WorkerInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker, as it has told last: about every 10 s. Times in wall nanoseconds.

    ``taken`` and ``finished`` count jobs since it ``started_at``, ``running`` those that run now, the oldest of them
    for ``oldest_running`` seconds, ``held`` these and those it has taken and not started. A worker takes jobs and
    finishes none: look at what it runs.
    """

    name: str
    """The worker's own name."""
    host: str
    """The machine it runs on."""
    pid: int
    """Its process."""
    started_at: int
    seen_at: int
    """When it told this."""
    concurrency: int
    """How many jobs it runs at a time."""
    taken: int = 0
    finished: int = 0
    running: int = 0
    held: int = 0
    oldest_running: float = 0.0
    stopping: bool = False
    """Whether it takes no more jobs."""
    memory: int = 0
    """How many bytes of memory its process holds; 0 for a worker of an older version."""


class WorkerReport(WorkerInfo, frozen=True, omit_defaults=True, kw_only=True):
    """What a worker tells.

    ``parked``: the jobs that it holds for a limit: sequence, delivery, name of the limit. ``began``: jobs that it runs,
    those that it has run for longest: sequence, delivery, and when the attempt began, in wall nanoseconds.
    """

    parked: list[tuple[int, int, str]] = []
    began: list[tuple[int, int, int]] = []


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last job of a schedule that has ended, and was not skipped; in wall nanoseconds."""

    id: str
    finished_at: int


class JobSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of a queue. ``args`` are JSON, by parameter name; times are wall nanoseconds, 0 if there is none.

    ``cron`` has six fields, seconds first; empty for one that is due ``every`` seconds. ``next_due`` is 0 while
    it is ``paused``. ``last_job`` is the id of its last job that has ended, at ``last_finished_at``.
    """

    name: str
    job: str
    args: msgspec.Raw
    key: str = ""
    """The key of its jobs."""
    cron: str = ""
    timezone: str = ""
    """Where `cron` is evaluated; empty: UTC."""
    every: float = 0.0
    overlap: str = "skip"
    """`skip` or `allow`."""
    priority: int = 0
    """The priority of its jobs."""
    tenant: str = ""
    """The tenant of its jobs."""
    paused: bool = False
    next_due: int = 0
    last_job: str = ""
    last_finished_at: int = 0


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the views show it. ``last_error`` is the message of the last failed attempt.

    ``due`` is when a scheduled job is to start, or a retrying one to be tried again, in wall nanoseconds. ``progress``
    is what a job that has not ended told last.
    """

    id: str
    """The job's id."""
    job: str
    """The name of its function."""
    state: JobState
    """Where it is: `pending`, `scheduled`, `waiting`, `stuck`, `held`, `running`, `retrying`, or how it ended."""
    key: str
    """Its key, empty without one."""
    attempt: int
    """How many attempts have begun."""
    enqueued_at: int
    """When it was enqueued, in wall nanoseconds."""
    last_error: str = ""
    outcome: Outcome | None = None
    """How it ended, if it has."""
    due: int = 0
    progress: JobProgress | None = None
    priority: int = 0
    """From 0 to 3."""
    tenant: str = ""
    """The tenant that it is for, empty without one."""
    limit: str = ""
    """What the limit is for that holds the job: `all`, or a job's name, and `, each key` if it is for each key."""
    worker: str = ""
    """Who runs the job, or ran it last if it has ended. A worker tells about every 10 s; empty until then."""
    started_at: int = 0
    """When its attempt began that runs, or ran last, in wall nanoseconds; 0 if that is not known."""
    waits_for: SignalWait | None = None
    """What a `waiting` job waits for."""


class TenantCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a tenant are due and have not ended."""

    tenant: str
    pending: int
    """Waiting for a worker."""
    taken: int = 0
    """Taken by a worker, or waiting for another attempt."""
    weight: int = 1
    """How many turns it has while others have one."""


class JobCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in each state."""

    pending: int = 0
    """Waiting for a worker, or taken by one that has not begun them; 1 if all that waits is a flow to be carried on."""
    running: int = 0
    """Begun: their functions were called."""
    held: int = 0
    """Waiting for a limit."""
    held_for: dict[str, int] = {}
    """How many of those wait for which limit."""
    retrying: int = 0
    """Waiting for another attempt, after one that failed."""
    completed: int = 0
    """Ended with a result, as far as the history goes back."""
    failed: int = 0
    """Ended with an error, as far as the history goes back."""
    cancelled: int = 0
    """Cancelled, as far as the history goes back."""
    expired: int = 0
    """Not started in time, as far as the history goes back."""
    scheduled: int = 0
    """Waiting for their time: enqueued for later, snoozing or sleeping."""
    waiting: int = 0
    """Waiting for a signal, or for jobs that they have called."""
    stuck: int = 0
    """Given back by workers whose code has not what they need; one that has takes them."""

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        given_back = self.scheduled + self.waiting + self.stuck + self.held + self.retrying
        return self.pending + self.running + given_back

    @property
    def finished(self) -> int:
        """Jobs that have ended, in any state."""
        return self.completed + self.failed + self.cancelled + self.expired


# --- what a job of a flow tells it

_LONGEST_ERROR: Final = 1024


class NodeEnd(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True, tag="end"):
    """The job of a node has ended, with an ``attempt``; ``id`` is the job's.

    ``result`` is kept if it is ``wanted`` by another node.
    """

    node: int
    id: str
    state: Ending
    result: msgspec.Raw = NOTHING
    wanted: bool = False
    error: str = ""
    attempt: int = 0


class NodeAgain(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="again"):
    """The dead letter of a node's job was redriven, as the job ``id``."""

    node: int
    id: str


def node_end(place: FlowPlace, outcome: Outcome) -> NodeEnd:
    """Return what the flow of a job keeps of its outcome."""
    return NodeEnd(
        node=place.node,
        id=outcome.id,
        state=outcome.state,
        result=outcome.result if place.wanted and outcome.state == "completed" else NOTHING,
        wanted=place.wanted,
        error=outcome.error[:_LONGEST_ERROR],
        attempt=outcome.attempt,
    )
