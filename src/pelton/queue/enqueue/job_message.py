"""The message that puts a job into a queue, and its place there. Pure.

Places are how jobs that are scheduled or unique are found, and never stored twice. Such a job has a *leaf*, one token
at the end of its subject. While it waits for its time it is a schedule, at another subject with the same leaf; both
match one filter, so the condition that nothing is stored under that filter makes a job unique from the moment it is
enqueued until it has ended, because the queue's stream then removes it.

The message of a scheduled job is stored again when it falls due, with another sequence, so its id is not its sequence:
it is the leaf, a number that no other job of the leaf has, and its key or the token of its tenant, from which its
subjects follow::

    leaf[-number][@key]

So what is unique is unique for its tenant.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pelton.api import ConfigError, Outgoing, headers
from pelton.api.times import format_duration, rfc3339
from pelton.queue.model.naming import as_token, encode_tenant, key_part, of_token
from pelton.queue.model.options import PLAIN, JobOptions, due_time
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import Envelope, FlowPlace, encode_envelope

if TYPE_CHECKING:
    from collections.abc import Callable

    from pelton.api import StoredMessage
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.options import JobOptions

_envelope: Final = msgspec.json.Decoder(Envelope).decode
_encode: Final = msgspec.json.Encoder().encode
_NO_HEADERS: Final = headers.encode({})
# Stands for a leaf: no subject has it.
_LEAF: Final = "LEAF LEAF"
# So many bytes of a block are before its first header.
_OPENING: Final = len("NATS/1.0\r\n")


class JobMessage:
    """How jobs of one name are stored in a queue; ``exclusive`` is the queue's setting."""

    def __init__(self, names: QueueNames, job: str, *, exclusive: bool) -> None:
        self._names = names
        self.job = job
        self._exclusive = exclusive
        # Mostly, the options of many jobs are the same.
        self._checked: JobOptions | None = None
        self._many: UniqueMessages | None = None
        self._at: tuple[int, str] = (0, "")

    def message(
        self,
        args: bytes,
        options: JobOptions = PLAIN,
        now: int = 0,
        new_id: Callable[[], str] = str,
        meta: dict[str, str] | None = None,
    ) -> Outgoing:
        """Return the message of one job with arguments as a JSON object by name.

        ``now`` is in wall nanoseconds, ``new_id`` gives an id that nobody has. Raises ConfigError.
        """
        if options is not self._checked:
            self.check(options)
            self._checked = options
            self._many = (
                UniqueMessages(self._names, self.job, options, self._key(options)) if _is_usual(options) else None
            )
        if self._many is not None:
            return self._many.message(args, meta)
        envelope, key = self._envelope(args, options, now, meta), self._key(options)
        if not options.is_plain:
            fresh = new_id() if options.is_later else ""
            return self._at_place(envelope, key, options, place_of(self.job, args, options, key, fresh))
        # Per job name: another job of the queue may work on the same thing.
        msg_id = f"{self.job}/{options.idempotency_key}"
        block = headers.encode({headers.MSG_ID: msg_id}) if options.idempotency_key else None
        return Outgoing(self._subject(options), _encode(envelope), block)

    def _subject(self, options: JobOptions) -> str:
        if options.tenant:
            return self._names.tenant_subject(encode_tenant(options.tenant), options.priority)
        return self._names.job_subject(options.key if self._exclusive else "", options.priority)

    def check(self, options: JobOptions) -> None:
        """Raise ConfigError for options that contradict each other, or that the queue can't keep."""
        options.check(f"job {self.job!r}")
        if options.tenant and options.key and self._exclusive:
            raise ConfigError(
                f"job {self.job!r}: tenant is {options.tenant!r}, but in an exclusive queue the keys themselves take "
                "turns: leave tenant or key out, or use a queue that is not exclusive"
            )

    def of_flow(
        self, args: bytes, options: JobOptions, now: int, meta: dict[str, str], place: FlowPlace, generation: int
    ) -> Outgoing:
        """Return the message of a node of a flow, which is refused while its job is unfinished."""
        spot = flow_place(place.flow, place.node, generation, key := self._key(options))
        envelope = msgspec.structs.replace(self._envelope(args, options, now, meta), flow=place)
        return self._at_place(
            envelope, key, msgspec.structs.replace(options, idempotency_key=f"flow-{spot.leaf}"), spot
        )

    def _envelope(self, args: bytes, options: JobOptions, now: int, meta: dict[str, str] | None) -> Envelope:
        due = due_time(options, now)
        expires = 0 if options.ttl is None else max(due, now) + int(options.ttl * 1e9)
        kept = 0 if options.unique_for is None else now + int(options.unique_for * 1e9)
        return Envelope(
            self.job,
            msgspec.Raw(args),
            options.key,
            due=due,
            expires=expires,
            unique_until=kept,
            meta=meta or {},
            priority=options.priority,
            tenant=options.tenant,
        )

    def _key(self, options: JobOptions) -> str:
        """Return the key as a part of the job's subject, or what takes its place: the tenant."""
        return key_part(options.key, options.tenant, exclusive=self._exclusive)

    def replacing(self, message: Outgoing, scheduled: StoredMessage) -> Outgoing:
        """Return a unique job's message, as it replaces one that is scheduled, which keeps its id.

        It is refused if that one has changed, or has fallen due.
        """
        envelope = msgspec.structs.replace(_envelope(message.data), id=job_id_in(scheduled.data, scheduled.seq))
        return self.following(Outgoing(message.subject, _encode(envelope), message.headers), scheduled.seq)

    def following(self, message: Outgoing, seq: int) -> Outgoing:
        """Return a unique job's message, as it is stored beside one that has started: it must be the last there."""
        assert message.headers is not None, "unique jobs have conditions"
        block = headers.with_header(message.headers, headers.EXPECTED_LAST_SUBJECT_SEQUENCE, str(seq))
        return Outgoing(message.subject, message.data, block)

    def to_move(self, envelope: Envelope, queue: str, job_id: str, leaf: str, delay: float | None) -> Outgoing:
        """Return the message of a job of another ``queue``, which is refused while the job is here and unfinished.

        ``delay``: in how many seconds it is due if it was delayed.
        """
        if self._exclusive and envelope.key:
            # Here, its key takes turns.
            envelope = msgspec.structs.replace(envelope, tenant="")
        key = key_part(envelope.key, envelope.tenant, exclusive=self._exclusive)
        place = moved_place(queue, job_id, leaf, key)
        options = JobOptions(idempotency_key=f"move-{queue}-{job_id}", delay=delay)
        return self._at_place(envelope, key, options, place)

    def redriven(self, envelope: Envelope) -> Outgoing:
        """Return the message of a failed job that is to run again; ``redriven_from`` is its id.

        It has an id and a place that follow from that one, so the message is refused while the job is unfinished.
        """
        key = key_part(envelope.key, envelope.tenant, exclusive=self._exclusive)
        place = redriven_place(envelope.redriven_from, key)
        # Its time, its time to live, and how long it was unique, were those of the job that failed.
        fresh = msgspec.structs.replace(envelope, due=0, expires=0, unique_until=0)
        return self._at_place(fresh, key, JobOptions(idempotency_key=f"redrive-{envelope.redriven_from}"), place)

    def _at_place(self, envelope: Envelope, key: str, options: JobOptions, place: Place) -> Outgoing:
        names = self._names
        subject = target = names.place(key, place.leaf, envelope.priority)
        # Subjects hold no line breaks; of what becomes a header, only an idempotency key is checked for them.
        fields = ""
        if envelope.due:
            subject = names.later(key, place.leaf)
            at = f"@at {self._time_text(envelope.due)}"
            fields = f"{headers.SCHEDULE}: {at}\r\n{headers.SCHEDULE_TARGET}: {target}\r\n"
            if options.delay is not None:
                fields += f"{headers.DELAY}: {format_duration(int(options.delay * 1e9))}\r\n"
        if place.is_unique:
            where = names.anywhere(key, place.leaf)
            fields += (
                f"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: 0\r\n"
                f"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT}: {where}\r\n"
            )
        block = _NO_HEADERS
        if options.idempotency_key:
            block = headers.encode({headers.MSG_ID: f"{self.job}/{options.idempotency_key}"})
        if fields:
            block = b"%b%b%b" % (block[:_OPENING], fields.encode(), block[_OPENING:])
        if place.id != envelope.id:
            envelope = msgspec.structs.replace(envelope, id=place.id)
        return Outgoing(subject, encode_envelope(envelope), block if block != _NO_HEADERS else None)

    def _time_text(self, due: int) -> str:
        known, text = self._at
        if known != due:
            text = rfc3339(due)
            self._at = due, text
        return text


class UniqueMessages:
    """The messages of many unique jobs with the same options and no times: each is its leaf, and what all share.

    They are those that :class:`JobMessage` makes of such jobs one by one, in less time.
    """

    def __init__(self, names: QueueNames, job: str, options: JobOptions, key: str) -> None:
        self._job = job
        self._options = options
        self._before, _, self._after = names.place(key, _LEAF, options.priority).partition(_LEAF)
        block = headers.encode(
            {
                headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
                headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: names.anywhere(key, _LEAF),
            }
        )
        self._block_before, _, self._block_after = block.partition(_LEAF.encode())

    def message(self, args: bytes, meta: dict[str, str] | None) -> Outgoing:
        """Return the message of a job with arguments as a JSON object by name."""
        options, leaf = self._options, unique_leaf(self._job, args, self._options)
        envelope = Envelope(
            self._job,
            msgspec.Raw(args),
            options.key,
            meta=meta or {},
            priority=options.priority,
            tenant=options.tenant,
        )
        block = b"%b%b%b" % (self._block_before, leaf.encode(), self._block_after)
        return Outgoing(f"{self._before}{leaf}{self._after}", _encode(envelope), block)


def _is_usual(options: JobOptions) -> bool:
    return options.is_unique and not options.is_timed


# --- places

_FRESH: Final = "s"
_UNIQUE: Final = "u"
_REDRIVEN: Final = "r"
_CRON: Final = "c"
_FLOW: Final = "f"
_MOVED: Final = "m"
_DIGEST_BYTES: Final = 15


class Place(NamedTuple):
    """Where a job is kept: its leaf, its id (empty: the sequence of its message), and whether no other may be there."""

    leaf: str
    id: str
    is_unique: bool


def place_of(job: str, args: bytes, options: JobOptions, key: str, new_id: str) -> Place:
    """Return the place of a job with options; ``key`` is the part of its subject, ``new_id`` an id nobody has."""
    if options.is_unique:
        leaf = unique_leaf(job, args, options)
        return Place(leaf, _id(f"{leaf}-{new_id}", key) if options.is_later else "", is_unique=True)
    leaf = _FRESH + new_id
    return Place(leaf, _id(leaf, key), is_unique=False)


def unique_leaf(job: str, args: bytes, options: JobOptions) -> str:
    """Return the leaf of a unique job."""
    return _UNIQUE + _digest(*_what_is_unique(job, args, options))


def redriven_place(job_id: str, key: str) -> Place:
    """Return the place of a failed job that is redriven: always the same, so that repeating it stores nothing."""
    leaf = _REDRIVEN + _digest("redriven", job_id)
    return Place(leaf, _id(leaf, key), is_unique=True)


def flow_place(flow: str, node: int, generation: int, key: str) -> Place:
    """Return the place of a node of a flow: always the same. ``generation`` counts how often it was taken back."""
    leaf = _FLOW + _digest("flow", flow, str(node), str(generation))
    return Place(leaf, _id(leaf, key), is_unique=True)


def moved_place(queue: str, job_id: str, leaf: str, key: str) -> Place:
    """Return the place, in another queue, of a job of ``queue``: always the same. A unique job keeps its ``leaf``."""
    if not leaf.startswith(_UNIQUE):
        leaf = _MOVED + _digest("moved", queue, job_id)
        return Place(leaf, _id(leaf, key), is_unique=True)
    return Place(leaf, _id(f"{leaf}-{_digest('moved', queue, job_id)}", key), is_unique=True)


def cron_leaf(schedule: str) -> str:
    """Return the leaf of the jobs of a schedule, by its name."""
    return _CRON + _digest("schedule", schedule)


def _what_is_unique(job: str, args: bytes, options: JobOptions) -> tuple[str, ...]:
    if options.id:
        return "id", options.id
    if options.unique == "arguments":
        named = msgspec.json.decode(args)
        # Keyword arguments may have come in another order.
        text = msgspec.json.encode(named, order="deterministic").decode()
        return "arguments", job, options.key, text
    if options.unique == "key":
        return "key", options.key
    return "text", options.unique


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _id(leaf: str, key: str) -> str:
    return f"{leaf}@{as_token(key)}" if key else leaf


class WhereFound(NamedTuple):
    """Where to look for a job: its leaf, and its key in its subject form."""

    leaf: str
    key: str


def found_by(job_id: str) -> WhereFound:
    """Return where the job of an id is that is not a sequence."""
    name, _, key = job_id.partition("@")
    return WhereFound(name.partition("-")[0], of_token(key))
