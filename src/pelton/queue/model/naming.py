"""The names of a queue's streams and subjects, and how a key becomes part of a subject. Pure.

A queue ``garage`` lives in six streams: ``JOBS_garage`` (jobs that have not ended; a work queue),
``JOBS_garage_history`` (how jobs ended), ``JOBS_garage_dead`` (failed jobs that can be redriven),
``JOBS_garage_attempts`` (the last failed attempt of each), ``JOBS_garage_control`` (orders for its workers),
``JOBS_garage_running`` (steps and progress of jobs that have not ended, the workers, and who holds slots of limits). On
a cluster an exclusive queue has another one, ``JOBS_garage_keys`` (who holds which key), and a queue with flows
``JOBS_garage_flows``.

Jobs of a key share a subject, and so do those without one; those with a priority have a subject for each rank, as
``key2.car1`` beside ``key.car1``, and those of a tenant one for the tenant and the rank: ``tenant.~acme.%.2``. A job
that is scheduled or unique has a place of its own: one more token, by which it is found, and which is not taken twice.
Where a subject of such a place has the job's key, that of a job with a tenant has the tenant, as one token that no key
has, and its rank is last.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import unquote

from pelton.api import ConfigError
from pelton.queue.model.states import Ending

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_/=:-]+(\.[A-Za-z0-9_/=:-]+)*")
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/=:-")
_KEY_LIMIT: Final = 512
_DIGEST_BYTES: Final = 12
_TENANT_CONSUMER: Final = re.compile(r"tenant\d_[0-9a-f]{24}")
PLACE: Final = "%"
"""The token between a key and the place of one of its jobs: an encoded key never has it."""
FLOWS_CONSUMER: Final = "flows"
"""The durable consumer from which workers take what happens in flows."""
SIGNALS_CONSUMER: Final = "signals"
"""The durable consumer from which workers take the signals to jobs."""
CALLS: Final = "%call"
"""The name, as a token, of the signals by which called jobs tell their ends: no name of a program's has this token."""
CANCEL: Final = "%cancel"
"""The token of the signal by which a job that has something to undo is cancelled: all its waits end with it."""
ROUND: Final = "~"
"""The token before the number of a round, at the end of what a job remembers that has begun anew."""
_TENANT: Final = "~"
HIGHEST_PRIORITY: Final = 3
ALL_PRIORITIES: Final = range(HIGHEST_PRIORITY + 1)
_RANKS: Final = frozenset(map(str, range(HIGHEST_PRIORITY + 1)))
SIDES: Final = {
    "history": "history",
    "dead": "dead letters",
    "attempts": "failed attempts",
    "control": "orders",
    "running": "steps, signals and progress",
    "keys": "keys",
    "flows": "flows",
}
"""The contents of the side streams, by the suffix of their names."""


def encode_key(key: str) -> str:
    """Return ``key`` as tokens of a subject: ``flights.N1`` unchanged, unusual characters as ``%XX``.

    Raises ConfigError for a key that is empty, over 512 bytes, or not text.
    """
    if not isinstance(key, str):
        raise ConfigError(f"a job's key must be a text, this one is {key!r}: convert it with str()")
    if _PLAIN_KEY.fullmatch(key) and len(key) <= _KEY_LIMIT:
        return key
    try:
        raw = key.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"a job's key must be valid text, this one is {key[:40]!r} ({error.reason})") from None
    if not 0 < len(raw) <= _KEY_LIMIT:
        raise ConfigError(f"a job's key must have 1 to {_KEY_LIMIT} bytes, this one has {len(raw)}: {key[:40]!r}")
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in raw)


def decode_key(form: str) -> str:
    """Return the key of its subject form: what was given to :func:`encode_key`."""
    return unquote(form)


def encode_tenant(tenant: str) -> str:
    """Return ``tenant`` as one token of a subject. Raises ConfigError, as :func:`encode_key` does."""
    try:
        return _TENANT + token_of(tenant)
    except ConfigError as error:
        raise ConfigError(str(error).replace("a job's key", "a tenant", 1)) from None


def key_part(key: str, tenant: str, *, exclusive: bool) -> str:
    """Return what stands in the subject of a job's place: its key, or the token of its tenant; empty for neither."""
    if exclusive and key:
        return encode_key(key)
    return encode_tenant(tenant) if tenant else ""


def tenant_in(token: str) -> str:
    """Return the tenant that a token of a subject names: what was given to :func:`encode_tenant`."""
    return unquote(token.removeprefix(_TENANT))


def token_of(text: str) -> str:
    """Return a text as one token of a subject. Raises ConfigError, as :func:`encode_key` does."""
    return as_token(encode_key(text))


def as_token(key: str) -> str:
    """Return a key in its subject form, or the token of a tenant, as one token."""
    return key.replace(".", "%2E")


def of_token(token: str) -> str:
    """Return what was given to :func:`as_token`: only keys without unusual characters have points."""
    plain = token.replace("%2E", ".")
    return plain if _PLAIN_KEY.fullmatch(plain) else token


class QueueNames:
    """The streams, subjects and consumers of one queue. Raises ConfigError for an invalid name."""

    def __init__(self, queue: str) -> None:
        if not isinstance(queue, str) or not _NAME.fullmatch(queue):
            raise ConfigError(f"queue name {queue!r}: use 1 to 64 letters, digits, '_' and '-'")
        self.queue = queue
        self.root: str = f"$JOBS.{queue}"
        self._name_streams(queue)
        self._name_jobs()
        # What is announced and not stored: to listeners of events, and to workers that wait for tenants' jobs.
        self.events: str = f"{self.root}.events"
        self.bell: str = f"{self.root}.bell"
        self.all_signals: str = f"{self.root}.running.job.*.signal.*.*"
        self._hold_prefix = f"{self.root}.hold."
        self.ending_prefix: str = f"{self.root}.history."
        # The prefix of the job's id in the subject of a completed one: most jobs complete.
        self.completed_prefix: str = f"{self.ending_prefix}completed."

    def _name_streams(self, queue: str) -> None:
        self.jobs: str = f"JOBS_{queue}"
        self.history: str = f"JOBS_{queue}_history"
        self.dead: str = f"JOBS_{queue}_dead"
        self.attempts: str = f"JOBS_{queue}_attempts"
        self.control: str = f"JOBS_{queue}_control"
        self.running: str = f"JOBS_{queue}_running"
        self.keys: str = f"JOBS_{queue}_keys"
        self.flows: str = f"JOBS_{queue}_flows"
        # The side streams, each with the subject it takes.
        self.sides: tuple[tuple[str, str], ...] = (
            (self.history, f"{self.root}.history.>"),
            (self.dead, f"{self.root}.dead.>"),
            (self.attempts, f"{self.root}.attempts.>"),
            (self.control, f"{self.root}.control.>"),
            (self.running, f"{self.root}.running.>"),
            (self.keys, f"{self.root}.hold.>"),
            (self.flows, f"{self.root}.flow.>"),
        )

    def _name_jobs(self) -> None:
        """Name the subjects of the jobs' stream."""
        self.free_subject: str = f"{self.root}.free"
        # How the subjects of jobs with a key begin, by their priority.
        self.key_ranks: tuple[str, ...] = (
            f"{self.root}.key",
            *(f"{self.root}.key{rank}" for rank in range(1, HIGHEST_PRIORITY + 1)),
        )
        self.keyed_jobs: tuple[str, ...] = tuple(f"{prefix}.>" for prefix in self.key_ranks)
        self.free_places: str = f"{self.free_subject}.>"
        self.scheduled: str = f"{self.root}.later.>"
        self.crons: str = f"{self.root}.cron.>"
        self.kept: str = f"{self.root}.kept.>"
        self._cron_prefix = f"{self.root}.cron."
        self._kept_prefix = f"{self.root}.kept."
        # The prefixes of jobs without a key, by their priority: only those without one have two filters.
        self._free_prefixes = (
            f"{self.free_subject}.",
            *(f"{self.root}.rank{rank}." for rank in range(1, HIGHEST_PRIORITY + 1)),
        )
        self.ranked_jobs: tuple[str, ...] = tuple(f"{prefix}>" for prefix in self._free_prefixes[1:])
        self._tenant_prefix = f"{self.root}.tenant."
        self.tenant_jobs: str = f"{self._tenant_prefix}>"
        self._key_prefixes = tuple(f"{prefix}." for prefix in self.key_ranks)
        self._later_prefix = f"{self.root}.later."
        # Those that workers take jobs without a key from, those of all jobs that are due, and all of the jobs' stream.
        self.free_jobs: tuple[str, str] = (self.free_subject, self.free_places)
        self.due_jobs: tuple[str, ...] = (*self.keyed_jobs, *self.free_jobs, *self.ranked_jobs, self.tenant_jobs)
        self.job_subjects: tuple[str, ...] = (*self.due_jobs, self.scheduled, self.crons, self.kept)

    def job_subject(self, key: str, priority: int = 0) -> str:
        """Return the subject of a job: one for all jobs of a priority without a key, one per key and priority."""
        if key:
            return self._key_prefixes[priority] + encode_key(key)
        return f"{self._free_prefixes[priority]}{PLACE}" if priority else self.free_subject

    def tenant_subject(self, tenant: str, priority: int) -> str:
        """Return the subject of the jobs of a tenant and a priority; the tenant as a token."""
        return f"{self._tenant_prefix}{tenant}.{PLACE}.{priority}"

    def place(self, key: str, leaf: str, priority: int = 0) -> str:
        """Return the subject of a job with a place of its own: ``leaf`` is one token, the key in its subject form.

        Here and below, the token of the job's tenant may take the place of a key.
        """
        if key.startswith(_TENANT):
            return f"{self._tenant_prefix}{key}.{leaf}.{priority}"
        if key:
            return f"{self._key_prefixes[priority]}{key}.{PLACE}.{leaf}"
        return f"{self._free_prefixes[priority]}{leaf}"

    def places(self, key: str, leaf: str) -> tuple[str, ...]:
        """Return the subjects where a job of any priority with this leaf may be."""
        return tuple(self.place(key, leaf, priority) for priority in range(HIGHEST_PRIORITY + 1))

    def later(self, key: str, leaf: str) -> str:
        """Return the subject of the schedule of a job that is to be at its :meth:`place` later."""
        return f"{self._later_prefix}{_under(key, leaf, '0')}"

    def anywhere(self, key: str, leaf: str) -> str:
        """Return the filter for a job at its :meth:`place`, for its schedule, and for the place if it is kept."""
        return f"{self.root}.*.{_under(key, leaf, '*')}"

    def keeping(self, subject: str) -> str:
        """Return the subject that keeps the :meth:`place` of a unique job taken after the job has ended."""
        _, _, place = subject.removeprefix(f"{self.root}.").partition(".")
        return self._kept_prefix + place

    def cron(self, leaf: str) -> str:
        """Return the subject of a schedule whose jobs have a :meth:`place`."""
        return self._cron_prefix + leaf

    def is_job(self, subject: str) -> bool:
        """Whether a subject of the jobs' stream is that of a job, and not of a schedule of many, or a kept place."""
        return not subject.startswith((self._cron_prefix, self._kept_prefix))

    def is_cron(self, subject: str) -> bool:
        """Whether a subject is that of a schedule of many jobs, and not of a job."""
        return subject.startswith(self._cron_prefix)

    def is_later(self, subject: str) -> bool:
        return subject.startswith(self._later_prefix)

    def is_free(self, subject: str) -> bool:
        """Whether a subject is that of a job without a key, or of a queue that is not exclusive."""
        return subject == self.free_subject or subject.startswith((*self._free_prefixes, self._tenant_prefix))

    def has_tenant(self, subject: str) -> bool:
        return subject.startswith(self._tenant_prefix)

    def tenant_of(self, subject: str) -> str:
        """Return the token of the tenant that the subject of one of its jobs names."""
        return subject.removeprefix(f"{self.root}.").split(".", 2)[1]

    def rank_of_tenant(self, subject: str) -> int:
        """Return the priority that the subject of a job with a tenant names; -1 if it is none of this queue."""
        rank = subject.rpartition(".")[2]
        return int(rank) if rank in _RANKS else -1

    def lane(self, subject: str) -> str:
        """Return the consumer of a job without a key; empty for that of the jobs without a priority or a tenant."""
        if self.has_tenant(subject):
            return self.tenant_consumer(self.tenant_of(subject), self.rank_of_tenant(subject))
        if subject.startswith(self._free_prefixes[1:]):
            return subject.removeprefix(f"{self.root}.").partition(".")[0]
        return ""

    def tenant_filter(self, tenant: str, priority: int) -> str:
        """Return the filter for the jobs of a tenant and a priority; the tenant as a token."""
        return f"{self._tenant_prefix}{tenant}.*.{priority}"

    def tenant_consumer(self, tenant: str, priority: int) -> str:
        """Return the name of the consumer of a tenant's jobs of a priority; the tenant as a token."""
        digest = hashlib.blake2b(tenant.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        return f"tenant{priority}_{digest}"

    def is_tenant_consumer(self, consumer: str) -> bool:
        return _TENANT_CONSUMER.fullmatch(consumer) is not None

    def key_of_job(self, subject: str) -> str:
        """Return the key, in its subject form, that a job's subject names."""
        prefix = self._key_prefixes[self.priority_of_key(subject)]
        return subject.removeprefix(prefix).partition(f".{PLACE}.")[0]

    def key_in(self, subject: str) -> str:
        """Return the key that the subject of a due job names, in an exclusive queue; empty for none."""
        named = self.key_of_job(subject)
        return decode_key(named) if named != subject else ""

    def priority_of_key(self, subject: str) -> int:
        for priority in range(HIGHEST_PRIORITY, 0, -1):
            if subject.startswith(self._key_prefixes[priority]):
                return priority
        return 0

    def subjects_of_key(self, key: str, priority: int = 0) -> tuple[str, str]:
        """Return the subject of a key's jobs of a priority, and the filter for those that have places of their own.

        The key in its subject form.
        """
        return self._key_prefixes[priority] + key, f"{self._key_prefixes[priority]}{key}.{PLACE}.>"

    def jobs_of_key(self, key: str) -> tuple[str, ...]:
        """Return the filters for the jobs of a key of an exclusive queue; the key in its subject form."""
        ranks = [subject for rank in ALL_PRIORITIES for subject in self.subjects_of_key(key, rank)]
        return *ranks, f"{self._later_prefix}{key}.{PLACE}.>"

    def leaf_of(self, subject: str) -> str:
        """Return the leaf of a job that has a place of its own; empty for the others."""
        if subject.startswith((self._tenant_prefix, f"{self._later_prefix}{_TENANT}")):
            subject = subject.rpartition(".")[0]
        prefixes = (*self._free_prefixes, self._tenant_prefix, self._later_prefix)
        placed = subject.startswith(prefixes) or f".{PLACE}." in subject
        leaf = subject.rpartition(".")[2] if placed else ""
        return "" if leaf == PLACE else leaf

    def hold_subject(self, key: str) -> str:
        """Return the subject of a key's record; the key in its subject form."""
        return self._hold_prefix + key

    def key_of_hold(self, subject: str) -> str:
        """Return the key that its record's subject names."""
        return subject.removeprefix(self._hold_prefix)

    def ending_subject(self, ending: Ending, job_id: str) -> str:
        """Return the subject of a job's outcome; ``*`` as id for all jobs that ended in this state."""
        return f"{self.ending_prefix}{ending}.{job_id}"

    def outcomes_of(self, job_id: str) -> str:
        """Return the filter for the outcome of a job, however it ended."""
        return f"{self.ending_prefix}*.{job_id}"

    def order_subject(self, order: str) -> str:
        return f"{self.root}.control.{order}"

    def cancel_subject(self, job_id: str) -> str:
        return self.order_subject(f"cancel.{job_id}")

    def last_run(self, leaf: str) -> str:
        """Return the subject of the record of a schedule's last run."""
        return self.order_subject(f"ran.{leaf}")

    def paused_schedule(self, leaf: str) -> str:
        """Return the subject where a schedule is kept while it is paused; ``*`` for all."""
        return self.order_subject(f"schedule.{leaf}")

    def dead_subject(self, job_id: str) -> str:
        return f"{self.root}.dead.{job_id}"

    def attempt_subject(self, job_id: str) -> str:
        """Return the subject of the record of a job's last attempt."""
        return f"{self.root}.attempts.{job_id}"

    def progress_subject(self, job_id: str) -> str:
        return f"{self.root}.running.job.{job_id}.progress"

    def signal_subject(self, job_id: str, name: str, token: str) -> str:
        """Return the subject of a signal; ``token``: ``*`` for all of the name.

        Raises ConfigError for a name that is empty, or over 512 bytes.
        """
        return f"{self.root}.running.job.{job_id}.signal.{token_of(name)}.{token}"

    def signals_of(self, job_id: str, name: str) -> str:
        """Return the filter for the signals of a name, a token: as a beginning of subjects, which is found by them."""
        return f"{self.root}.running.job.{job_id}.signal.{name}.>"

    def is_signal(self, subject: str) -> bool:
        """Whether a subject of what a job leaves is that of a signal."""
        return subject.split(".", 6)[5] == "signal"

    def signal_in(self, subject: str) -> tuple[str, str]:
        """Return the id of the job, and the token of the name, that the subject of a signal has."""
        # Anybody may have published it.
        tokens = [*subject.split(".", 7), ""]
        return tokens[4], tokens[6]

    def memory_subject(self, job_id: str, *tokens: str | int) -> str:
        """Return the subject of what a job has left, such as the record of a wait, by tokens."""
        return f"{self.root}.running.job.{job_id}.{'.'.join(map(str, tokens))}"

    def tokens_in(self, subject: str) -> list[str]:
        """Return the tokens of what a job has left, its kind first, without those of its round."""
        tokens = subject.split(".")[5:]
        return tokens[:-2] if ROUND in tokens[-2:-1] else tokens

    def traces_of(self, job_id: str) -> str:
        """Return the filter for what a job leaves while it runs: its steps, sleeps, signals and progress."""
        return f"{self.root}.running.job.{job_id}.>"

    def slots_subject(self, place: str) -> str:
        """Return the subject of the record of a limit; ``>`` for those of all."""
        return f"{self.root}.running.slots.{place}"

    def weight_subject(self, tenant: str) -> str:
        """Return the subject of a tenant's weight; the tenant as a token, ``*`` for all."""
        return self.order_subject(f"weight.{tenant}")

    def limit_subject(self, scope: str) -> str:
        """Return the subject of a limit; ``>`` for all."""
        return self.order_subject(f"limit.{scope}")

    def worker_subject(self, worker: str) -> str:
        """Return the subject of a worker's record; ``*`` for those of all."""
        return f"{self.root}.running.worker.{worker}"

    def trend_subject(self, place: int) -> str:
        """Return the subject of how an hour went."""
        return f"{self.root}.running.trend.{place}"

    def begun_subject(self, worker: str) -> str:
        """Return the subject of what a worker has begun; ``*`` for that of all."""
        return f"{self.root}.running.begun.{worker}"

    def flow_begin(self, flow: str) -> str:
        """Return the subject of the message that begins a flow; ``*`` for all flows, here and below."""
        return f"{self.root}.flow.{flow}.begin"

    def flow_part(self, flow: str, part: str) -> str:
        """Return the subject of some of a flow's nodes."""
        return f"{self.root}.flow.{flow}.part.{part}"

    def flow_log(self, flow: str) -> str:
        """Return the subject of what happens in a flow, in order."""
        return f"{self.root}.flow.{flow}.log"

    def flow_told(self, flow: str, job_id: str) -> str:
        """Return the subject where an attempt tells that it ends a job of a flow."""
        return f"{self.root}.flow.{flow}.told.{job_id.partition('@')[0]}"

    def is_flow_log(self, subject: str) -> bool:
        return subject.startswith(f"{self.root}.flow.") and subject.endswith(".log")

    def is_flow_told(self, subject: str) -> bool:
        """Whether a subject of the flows is one where an attempt tells that it ends a job."""
        return subject.startswith(f"{self.root}.flow.") and subject.split(".")[-2] == "told"

    def flow_state(self, flow: str) -> str:
        """Return the subject of how a flow has ended."""
        return f"{self.root}.flow.{flow}.state"

    def all_of_flow(self, flow: str) -> str:
        """Return the filter for all that is stored of a flow."""
        return f"{self.root}.flow.{flow}.>"

    def flow_of(self, subject: str) -> str:
        return subject.removeprefix(f"{self.root}.flow.").partition(".")[0]


def _under(key: str, leaf: str, rank: str) -> str:
    """Return the last tokens of a place, and of what is stored beside it."""
    if key.startswith(_TENANT):
        return f"{key}.{leaf}.{rank}"
    return f"{key}.{PLACE}.{leaf}" if key else leaf
