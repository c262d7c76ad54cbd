"""What operators see. Times are RFC 3339 text, empty if unknown; durations are seconds; sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from pelton.api.wording import moment_text
from pelton.queue import AttemptError, DeadLetter, JobInfo, JobState
from pelton.queue.model.states import NOTHING, JobStep
from pelton.storage import LeafNote, StandbyLag

StreamKind = Literal["stream", "bucket", "objects", "queue", "locks", "election"]


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, and what it is used for. ``max_messages`` and ``max_bytes`` are its limits, -1 for none."""

    name: str
    """The stream's name."""
    kind: StreamKind
    """What it is used for: `"queue"` is a stream of jobs, `"bucket"` one of keys, and so on."""
    subjects: tuple[str, ...]
    """The subjects that it takes."""
    retention: str
    """When messages are removed: `limits`, `interest` or `workqueue`."""
    storage: str
    """Where it is kept: `file` or `memory`."""
    messages: int
    """How many messages it has."""
    bytes: int
    """How many bytes these messages take."""
    first_seq: int
    """The sequence of its first message."""
    last_seq: int
    """The sequence of the message that was stored last, even if it was removed."""
    last_at: str
    """When the last message was stored; empty if there was none."""
    num_subjects: int
    """How many subjects have messages."""
    consumers: int
    """How many consumers it has."""
    replicas: int
    """On how many servers it is kept; 1 in a file."""
    max_messages: int
    """The most messages that it may have, -1 for no limit."""
    max_bytes: int
    """The most bytes that it may take, -1 for no limit."""


class ConsumerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer, and how far it has come."""

    stream: str
    """The stream that it reads."""
    name: str
    """The consumer's name."""
    durable: bool
    """Whether it stays when nobody uses it."""
    filters: tuple[str, ...]
    """The subjects that it delivers; empty for all of the stream."""
    pending: int
    """Matching messages that were never delivered."""
    ack_pending: int
    """Messages that were delivered and are not settled."""
    redelivered: int
    """How many of these were delivered more than once."""
    waiting_pulls: int
    """How many fetches wait for messages."""
    delivered_seq: int
    """The sequence, in the stream, of the message that was delivered last."""
    deliveries: int
    """How many deliveries there were, redeliveries among them."""
    ack_floor: int
    """The sequence, in the stream, below and at which everything is settled."""
    ack_floor_delivery: int
    """The number of the delivery below and at which everything is settled."""
    lag: int
    """How many sequences of the stream follow `ack_floor`; 0 if nothing waits for it."""
    last_delivered_at: str
    """When a message was delivered last; empty if none was."""
    last_ack_at: str
    """When a message was acknowledged last; empty if none was."""
    paused: bool
    """Whether it delivers nothing at present."""


class BucketSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A key-value bucket; ``values`` counts revisions and markers of deleted keys."""

    name: str
    """The bucket's name."""
    values: int
    """How many revisions it has, markers of deleted keys among them."""
    keys: int
    """How many keys have revisions or markers."""
    bytes: int
    """How many bytes they take."""
    history: int
    """How many revisions are kept of a key."""
    ttl: float
    """For how many seconds a value is kept, 0 for ever."""
    storage: str
    """Where it is kept: `file` or `memory`."""
    replicas: int
    """On how many servers it is kept; 1 in a file."""
    last_at: str
    """When a key was changed last; empty if none was."""


class ObjectsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An object store; ``bytes`` is what it takes."""

    name: str
    """The object store's name."""
    bytes: int
    """How many bytes its objects take, compressed ones as they are stored."""
    ttl: float
    """For how many seconds an object is kept, 0 for ever."""
    storage: str
    """Where it is kept: `file` or `memory`."""
    replicas: int
    """On how many servers it is kept; 1 in a file."""
    last_at: str
    """When an object was changed last; empty if none was."""


class LockSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A lock, or a slot of a semaphore, that is held. ``slot`` is 0 for a lock; ``waiting`` callers want any slot."""

    kind: Literal["lock", "semaphore"]
    """A lock has one holder, a semaphore one for each slot."""
    name: str
    """The name of the lock or semaphore."""
    slot: int
    """Which slot of a semaphore; 0 for a lock."""
    holder: str
    """Who holds it, as it named itself."""
    token: int
    """The fencing token: each holder's is higher than the previous holder's."""
    since: str
    """Since when it is held."""
    renewed_at: str
    """When the holder renewed its lease last."""
    ttl: float
    """How many seconds the lease lasts without being renewed."""
    waiting: int
    """How many callers wait: for the lock, or for any slot of the semaphore."""


class ElectionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An election; ``leader`` is empty if nobody leads, ``token`` 0 for leaders of other clients than Pelton."""

    bucket: str
    """The bucket that keeps the election."""
    election: str
    """The election's name."""
    leader: str
    """Who leads, as it named itself; empty if nobody does."""
    token: int
    """The fencing token of its term; 0 for leaders of other clients than Pelton."""
    since: str
    """Since when it leads."""
    renewed_at: str
    """When it renewed its term last."""
    ttl: float
    """How many seconds a term lasts without being renewed."""


class TimeSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How some durations, in seconds, are spread."""

    median: float = 0.0
    """Half of them were not longer, in seconds."""
    p95: float = 0.0
    """95 of 100 were not longer, in seconds."""
    longest: float = 0.0
    """The longest of them, in seconds."""


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. ``per_minute``, ``wait`` and ``run`` come from the jobs that ended last."""

    name: str
    """The queue's name."""
    exclusive: bool = False
    """Whether at most one job of a key runs at a time."""
    lease: float = 0.0
    """How many seconds a worker that died keeps its jobs."""
    pending: int = 0
    """Jobs that wait for a worker or for their key, or that a worker has taken and not begun."""
    held: int = 0
    """Jobs that wait for a limit."""
    held_for: dict[str, int] = {}
    """How many of them wait for which limit."""
    running: int = 0
    """Jobs that run."""
    retrying: int = 0
    """Jobs that have failed and will be tried again."""
    completed: int = 0
    """Jobs in the history that have returned."""
    failed: int = 0
    """Jobs in the history that have failed for good."""
    cancelled: int = 0
    """Jobs in the history that were cancelled."""
    expired: int = 0
    """Jobs in the history whose time to live was over before they started."""
    scheduled: int = 0
    """Jobs that wait for their time."""
    waiting: int = 0
    """Jobs that wait for a signal, or for jobs that they have called."""
    stuck: int = 0
    """Jobs that workers have given back because their code has not what they need."""
    dead_letters: int = 0
    """Dead letters: failed jobs that can be sent again."""
    oldest_at: str = ""
    """When the oldest job that is due, and has not ended, was enqueued, or fell due again; empty if there is none."""
    last_ended_at: str = ""
    """When a job ended last; empty if none did."""
    per_minute: float = 0.0
    """How many jobs end in a minute."""
    wait: TimeSpread = TimeSpread()
    """From enqueue to the start of the last attempt."""
    run: TimeSpread = TimeSpread()
    """From the start to the end of the last attempt."""
    paused: bool = False
    """Whether no job starts."""
    paused_keys: tuple[str, ...] = ()
    """Keys whose jobs do not start."""
    paused_jobs: tuple[str, ...] = ()
    """Names of jobs that do not start."""
    error: str = ""
    """Why it cannot be looked at; then nothing else is known of it."""


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has done among the jobs that ended last, and what it does, by its heartbeat of every 10 s."""

    queue: str
    """The queue that it works on."""
    worker: str
    """The worker's name."""
    ended: int
    """How many of the jobs that ended last were its."""
    failed: int
    """How many of these failed."""
    last_job: str
    """The name of the job that it ended last; empty if none."""
    last_ended_at: str
    """When that ended; empty if none did."""
    host: str = ""
    """The host that it runs on; empty for a worker that is gone."""
    pid: int = 0
    """Its process on that host; 0 for a worker that is gone."""
    seen_at: str = ""
    """When its last heartbeat was; empty for a worker that is gone."""
    running: int = 0
    """How many jobs it runs."""
    oldest_running: float = 0.0
    """For how many seconds it has run the oldest of them."""
    stopping: bool = False
    """Whether it takes no more jobs, and ends with those that it runs."""
    memory: int = 0
    """How many bytes of memory its process holds, without the processes of jobs; 0 if it does not tell."""


class LimitSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a queue, and how much of it is in use."""

    queue: str
    """The queue that is limited."""
    job: str
    """The name of the jobs that are limited; empty for all."""
    per_key: bool
    """Whether each key has the limit for itself."""
    concurrency: int | None
    """How many may run at a time; None for any number."""
    starts: int | None
    """How many may start in `per` seconds; None for any number."""
    per: float
    """The seconds in which `starts` are counted."""
    burst: int
    """How many may start at once after a pause."""
    running: int
    """How many jobs hold a slot of it."""
    keys: int
    """How many keys have jobs that hold one, if each has the limit for itself."""
    fullest: int
    """The most slots that are held at one key."""
    next_start: float
    """In how many seconds the rate allows the next start; of keys, in as many at most."""


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its arguments and its errors; of those that have ended, only a dead letter has its arguments still."""

    job: JobInfo
    """The job: its state, key, times and outcome."""
    arguments: bytes | None
    """Its arguments as JSON; None if they are not kept any more."""
    errors: tuple[AttemptError, ...]
    """The errors of its attempts, oldest first."""
    is_dead: bool
    """Whether it is a dead letter."""
    waits_for: str = ""
    """What it waits for, if it does: its time, a limit, another job of its key, a worker, the end of a pause."""
    blocked_by: str = ""
    """The id of the job of its key that has to end first."""
    history: tuple[JobStep, ...] = ()
    """What it remembers and was sent, until it ends: its steps, sleeps, signals, calls and events."""


_SAID: Final = {
    "step": "did step {}",
    "sleep": "slept {}",
    "wait": "waited for signal {}",
    "received": "received signal {}",
    "call": "called job {}",
    "called": "called job {} ended",
    "event": "published {}",
    "signal": "was sent signal {}",
    "changed": "takes new code: {}",
    "fixed": "was given {}()",
    "undo": "registered undo {}",
    "undone": "called undo {}",
}


def history_lines(history: Iterable[JobStep]) -> list[tuple[int, str, str]]:
    """Return a history as lines: when in wall nanoseconds, what a job did, and the value or the end of it."""
    found = list[tuple[int, str, str]]()
    for one in history:
        is_late = one.kind == "received" and not one.seq
        said = "received no signal {} in time" if is_late else _SAID[one.kind]
        detail = f"until {moment_text(one.until)}" if one.until else ""
        if one.value != NOTHING and one.kind != "undo":
            detail = bytes(one.value).decode(errors="replace")
        found.append((one.at, said.format(one.name), detail))
    return found


class JobSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a search has found in a queue's streams, until it took too long, or had found enough."""

    queue: str
    """The queue that was searched."""
    jobs: tuple[JobInfo, ...]
    """The jobs that were found."""
    looked_at: int
    """How many messages were looked at."""
    next_begin: int
    """Where to go on (`begin`); 0 if all were looked at."""


class JobSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs or dead letters a list shows; an empty field means any."""

    state: JobState | Literal[""] = ""
    """Their state; empty: those that have not ended. Dead letters have none."""
    job: str = ""
    """The name of their function."""
    key: str = ""
    """Their key."""
    tenant: str = ""
    """The tenant they are for; the outcomes of jobs do not tell it, dead letters do."""
    error: str = ""
    """A part of their last error, or of what errors of its kind have in common (`ErrorGroup.error`)."""
    since: int = 0
    """Not enqueued earlier than this, in wall nanoseconds; those that have ended: not ended earlier."""
    until: int = 0
    """Not later than this, so too."""

    def has(self, job: str, key: str, tenant: str) -> bool:
        """Whether a job is selected by what is stored of it."""
        return self.job in ("", job) and self.key in ("", key) and self.tenant in ("", tenant)

    def is_at(self, time: int) -> bool:
        """Whether a time is within these bounds."""
        return self.since <= time and (not self.until or time <= self.until)


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of jobs."""

    queue: str
    """The name of the queue."""
    jobs: tuple[JobInfo, ...] = ()
    """The jobs."""
    cursor: str = ""
    """Where the next page begins; empty at the end."""
    looked_at: int = 0
    """How many jobs were looked at."""


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of dead letters."""

    queue: str
    """The name of the queue."""
    letters: tuple[DeadLetter, ...] = ()
    """The dead letters."""
    cursor: str = ""
    """Where the next page begins; empty at the end."""
    looked_at: int = 0
    """How many dead letters were looked at."""


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one kind of error."""

    error: str
    """What the errors have in common: the first line, with `#` for each number."""
    job: str
    """The name of the function that failed last so."""
    number: int
    """How many dead letters."""
    last_id: str
    """The id of the job that failed last so."""
    last_at: int
    """When it did, in wall nanoseconds."""


class ErrorGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a queue by their errors, those with the most first."""

    queue: str
    """The name of the queue."""
    groups: tuple[ErrorGroup, ...] = ()
    """The groups."""
    looked_at: int = 0
    """How many dead letters were looked at, from the newest on."""
    is_whole: bool = True
    """Whether these are all."""


class KeyCount(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and how many of its jobs have not ended: those that wait, run or will be tried again."""

    key: str
    """The key."""
    jobs: int
    """How many of its jobs have not ended; those that wait for their time are not counted."""


class KeyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a queue with most jobs that have not ended."""

    queue: str
    """The queue."""
    keys: tuple[KeyCount, ...]
    """The keys with most jobs, those with most first."""
    sampled: int
    """0 if all jobs were counted, or else how many: the oldest."""


class JobsOfKey(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a key that have not ended, scheduled ones among them."""

    queue: str
    """The queue that was searched."""
    key: str
    """The key."""
    total: int
    """How many of its jobs there are; -1 if that is not known."""
    jobs: tuple[JobInfo, ...]
    """The jobs that were found, oldest first."""
    next_begin: int
    """Where to go on (`begin`); 0 if there are no more."""


class StoreSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A store or cluster as a whole; ``file_bytes`` and ``log_bytes`` are 0 for a cluster."""

    streams: int
    """How many streams there are, including the streams of queues, buckets and object stores."""
    consumers: int
    """How many consumers they have."""
    messages: int
    """How many messages they have."""
    bytes: int
    """How many bytes these messages take."""
    queues: int
    """How many queues there are."""
    buckets: int
    """How many key-value buckets there are."""
    object_stores: int
    """How many object stores there are."""
    file_bytes: int
    """The size of the file; 0 for a cluster."""
    log_bytes: int
    """The size of the log beside it; 0 for a cluster."""
    writer_pid: int = 0
    """The process that holds the writer just now; 0 if none does, for a cluster, and where the system does not tell."""
    writer_held: float = 0.0
    """For how many seconds it has been seen to hold it and to write nothing: 0 at the first look of this process."""
    hubs: Sequence[LeafNote] = ()
    """The hubs whose leaf node the store is, as its process told last, which may have been killed since."""
    standbys: Sequence[StandbyLag] = ()
    """How far the standbys of the store are behind it; beside a standby, how far it is behind its store."""
