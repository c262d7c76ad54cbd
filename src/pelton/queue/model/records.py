"""How a job goes on after an attempt, and the records that the attempt writes as it ends: whoever runs it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import ceil, inf
from typing import Final

import msgspec

from pelton.api import (
    AckOp,
    Cancel,
    Delivered,
    Discard,
    JobArgumentsError,
    JobCancelledError,
    JobResultError,
    MessageTooLargeError,
    Outgoing,
    PermanentJobError,
    RetryJob,
    Snooze,
    StoredMessage,
    UnknownJobError,
    headers,
)
from pelton.api.job_errors import describe, trace
from pelton.api.json_values import UNREADABLE
from pelton.api.times import parse_duration
from pelton.jet import ack_of
from pelton.queue.model.limits import JobLimit, carried_out, number_of, version_order
from pelton.queue.model.naming import CALLS, CANCEL, ROUND, QueueNames, decode_key
from pelton.queue.model.options import JobRules
from pelton.queue.model.states import (
    AFTER_ATTEMPT,
    FOR_SIGNAL,
    FOR_VERSION,
    NOTHING,
    Attempt,
    AttemptEnd,
    AttemptError,
    DeadLetter,
    Envelope,
    Finish,
    FlowPlace,
    JobState,
    LastRun,
    NodeAgain,
    Outcome,
    PutOffDelivery,
    SignalWait,
    StepRecord,
    decode_envelope,
    decode_stored,
    node_end,
    with_own_name,
)
from pelton.runtime import Random

# --- how a job continues after an attempt: pure decisions from how the attempt ended

_LONGEST_DELAY_S: Final = 100 * 365 * 86_400.0


class Again(msgspec.Struct, frozen=True):
    """The job is retried after ``delay`` seconds."""

    delay: float
    error: str


class PutOff(msgspec.Struct, frozen=True):
    """The job is given back for ``delay`` seconds, and the attempt is not counted.

    None: for longer each time. ``began``: its function has run. ``limit``: it is held, for that limit. ``pause``: the
    scope that is paused. ``signal``: the token of the name of what it waits for; ``is_given`` and ``wanted`` as of
    `PutOffDelivery`; ``until`` when it waits for that, in wall nanoseconds, 0: for ever. ``is_stuck``: the worker's
    code has not what it needs. ``undo``: how it ends when that is undone. ``version``: of the code that goes on with
    it; ``awaits``: of the worker that it waits for.
    """

    delay: float | None
    reason: str
    began: bool = False
    limit: JobLimit | None = None
    pause: str = ""
    signal: str = ""
    is_given: bool = True
    wanted: int = 0
    until: int = 0
    is_stuck: bool = False
    undo: Finish | None = None
    version: str = ""
    awaits: str = ""


AfterAttempt = Finish | Again | PutOff
Decide = Callable[[BaseException, int, JobRules, Random], AfterAttempt]


def after_error(error: BaseException, attempt: int, rules: JobRules, random: Random) -> AfterAttempt:
    """Decide what follows an attempt that raised ``error``; ``attempt`` counts from 1."""
    if isinstance(error, UnknownJobError) or (isinstance(error, JobArgumentsError) and error.is_stored):
        # Another worker may know it, or this one after its next start.
        return PutOff(None, describe(error), is_stuck=True)
    if isinstance(error, Snooze):
        return PutOff(_whole_delay(error.delay), error.reason or describe(error), began=True)
    end, text = _end_by(error, attempt, rules), describe(error)
    state = AFTER_ATTEMPT[end]
    if state == "retrying":
        asked = error.delay if isinstance(error, RetryJob) else None
        if asked is not None:
            return Again(_whole_delay(asked), text)
        delay, wrong = rules.delay_after(attempt, error, random)
        return Again(delay, f"{text} ({wrong})" if wrong else text)
    if end == "last attempt":
        text = f"{text} (attempt {attempt} of {rules.max_attempts})"
    traceback = trace(error) if end == "Discard" or state == "failed" else ""
    return Finish(state, text, traceback, by_order=isinstance(error, JobCancelledError))


def _whole_delay(asked: float) -> float:
    """Return a delay that can be kept: what a job asks for may be anything."""
    return min(max(asked, 0.0), _LONGEST_DELAY_S) if asked == asked else 0.0


def _end_by(error: BaseException, attempt: int, rules: JobRules) -> AttemptEnd:
    if isinstance(error, (JobCancelledError, Cancel)):
        return "Cancel"
    if isinstance(error, Discard):
        return "Discard"
    if isinstance(error, (PermanentJobError, JobArgumentsError, JobResultError, *rules.permanent)):
        return "permanent error"
    return "last attempt" if attempt >= rules.max_attempts else "error"


def after_refusal(refused: BaseException, attempt: int, rules: JobRules, random: Random) -> AfterAttempt:
    """Decide what follows an attempt that ran to its end, but whose result or messages were refused."""
    if isinstance(refused, MessageTooLargeError):
        # Another attempt would do the same work again, and be refused again.
        what = "the job ran to its end, but its result, or a message that it emitted, is too large to be stored"
        return _finish("refused", f"{what}: {describe(refused)}")
    return after_error(refused, attempt, rules, random)


def after_deaths(attempt: int, max_attempts: int) -> Finish | None:
    """Decide, before running it, about a job whose workers died during all its attempts."""
    if attempt <= max_attempts:
        return None
    return _finish("deaths", f"the worker died, or lost its lease, during attempt {attempt - 1} of {max_attempts}")


def _finish(end: AttemptEnd, error: str = "") -> Finish:
    state = AFTER_ATTEMPT[end]
    assert state != "retrying", f"{end}: the job has ended"
    return Finish(state, error)


COMPLETED: Final = _finish("return")
"""What follows an attempt that ran to its end, and whose result and messages are stored."""

SKIPPED: Final = _finish("skipped", "skipped: an earlier run of its schedule had not ended when it was due")
"""What becomes of a job of a schedule that is not to run beside another one."""

TOO_LATE: Final = _finish("too late", "its time to live was over before a worker had started it")
"""What becomes of a job that nobody has started in time."""


_encode: Final = msgspec.json.Encoder().encode


LONGEST_SLEEP_S: Final = 300 * 86_400.0
LONGEST_WAIT_S: Final = 25 * 86_400.0
"""How long a job that sleeps or waits is given back at most; then it starts, and goes on waiting.

The record of its attempts, by which a signal finds it, is kept for 30 days.
"""
_PUT_OFF_S: Final = 0.5
_LONGEST_PUT_OFF_S: Final = 15.0
_LONGEST_ERROR: Final = 1024
_MOST_ERRORS: Final = 20
# More than the number of any limit.
_OTHERS: Final[tuple[JobState, ...]] = ("scheduled", "pending", "waiting", "stuck")
_CAUSES: Final = {state: (1 << 32) + number for number, state in enumerate(_OTHERS)}
_BY_CAUSE: Final = {cause: state for state, cause in _CAUSES.items()}
CAUSES_OF: Final[dict[JobState, tuple[int, int]]] = {
    "retrying": (0, 0),
    "held": (1, (1 << 32) - 1),
    **{state: (cause, cause) for state, cause in _CAUSES.items()},
}
"""The first and the last number of :func:`cause_of` for jobs that were given back and are not due, by their state."""
_UNREAD: Final = Envelope(job="", args=NOTHING)
CLAIMED: Final = "keys"
"""The consumer that deliveries name whose keys are records."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended: what is published with it, and the ack of its delivery.

    ``messages`` end with its record, so that a reader that sees it finds all the others: the job's outcome or, for one
    that is retried, what its attempts left, which is then in ``known``. ``has_letter``: a dead letter is before it.
    """

    delivered: Delivered
    ack: AckOp
    messages: Sequence[Outgoing]
    known: Attempt | None = None
    has_letter: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, not only this attempt."""
        return self.known is None

    @property
    def waits_for_signal(self) -> bool:
        """Whether the job is given back to wait for a signal."""
        return self.known is not None and self.known.put_off is not None and self.known.put_off.scope == FOR_SIGNAL

    def without_letter(self) -> Ended:
        """Return the same without its dead letter, if that was refused."""
        return msgspec.structs.replace(self, messages=(*self.messages[:-2], self.messages[-1]), has_letter=False)


# --- what earlier deliveries have left


def with_losses(
    known: Attempt | None, job_id: str, deliveries: int, begun: Collection[int], now: int
) -> Attempt | None:
    """Return what is known of all deliveries of a job but the last, those included that their workers have not ended.

    Their workers died, or lost their leases. Of them, the ``begun`` ones were attempts, and have failed; the others do
    not count. ``known`` says what became of all deliveries before those.
    """
    accounted = accounted_for(known)
    missing = deliveries - 1 - accounted
    if missing <= 0:
        return known
    known = known or Attempt(id=job_id, attempt=0)
    deaths = sum(1 for number in begun if accounted < number < deliveries)
    attempt, error, errors = known.attempt, known.error, known.errors
    for _ in range(deaths):
        attempt += 1
        error = f"the worker died, or lost its lease, during attempt {attempt}"
        errors = _with_error(errors, AttemptError(attempt, now, error))
    return msgspec.structs.replace(
        known,
        attempt=attempt,
        error=error,
        errors=errors,
        returned=known.returned + missing - deaths,
        began=known.began or deaths > 0,
    )


def accounted_for(known: Attempt | None) -> int:
    """Return of how many deliveries of a job it is known what became of them: all up to the one with this number."""
    return known.attempt + known.returned if known is not None else 0


def waiting_state(known: Attempt | None) -> JobState:
    """Return the state of a job that was given back and is not due, by what is known of its attempts."""
    if known is None or not known.waits:
        return "retrying"
    if known.limit:
        return "held"
    if known.waits_for is not None:
        return "waiting"
    return "stuck" if known.is_stuck else "scheduled" if known.sleeps else "pending"


def cause_of(known: Attempt | None) -> int:
    """Return the number by which a store tells why a job waits; that of a limit tells for which it is held."""
    return _CAUSES.get(waiting_state(known), 0) or number_of(known.limit if known is not None else "")


def state_by_cause(cause: int, *, is_due: bool = False) -> JobState:
    """Return the state of a job that was given back, by the number of :func:`cause_of`; a stuck one stays so."""
    state = _BY_CAUSE.get(cause, "held" if cause else "retrying")
    return "pending" if is_due and state != "stuck" else state


def _with_error(before: tuple[AttemptError, ...], error: AttemptError) -> tuple[AttemptError, ...]:
    errors = (*before, error)
    return errors if len(errors) <= _MOST_ERRORS else (*errors[:1], *errors[1 - _MOST_ERRORS :])


def job_id_of(delivered: Delivered) -> str:
    return job_id_in(delivered.data, delivered.seq)


def scheduled_for(stored: StoredMessage, envelope: Envelope, now: int) -> int:
    """Return when a scheduled job is due: after a delay, but not later than that from now, if the clock was set."""
    delay = headers.first(stored.hdrs, headers.DELAY) if stored.hdrs else None
    with suppress(ValueError):
        return envelope.due if delay is None else min(envelope.due, now + parse_duration(delay))
    return envelope.due


def job_id_in(data: bytes, seq: int) -> str:
    try:
        return decode_envelope(data).id or str(seq)
    except UNREADABLE:
        return str(seq)


class AttemptRecords(msgspec.Struct, eq=False, gc=False):
    """A delivered job, and the attempt that begins when its function is called: number ``attempt``, from 1.

    Times in wall nanoseconds. ``now`` goes on since the job was taken as if the clock was not set any more, by
    the store's clock, and ``own`` by this machine's. ``events`` are the last values that it has published.
    ``has_undo``: it has registered what undoes it; ``undoing``: it is started to do that, and ends so afterwards.
    ``round``: how often it has begun anew, and ``round_seq`` is the sequence of the record of that.
    """

    names: QueueNames
    worker: str
    delivered: Delivered
    now: Callable[[], int]
    own: Callable[[], int]
    id: str
    attempt: int
    envelope: Envelope = _UNREAD
    known: Attempt | None = None
    has_begun: bool = False
    started: int = 0
    events: dict[str, msgspec.Raw] | None = None
    has_undo: bool = False
    undoing: Finish | None = None
    round: int = 0
    round_seq: int = 0

    def anew(self) -> AttemptRecords:
        """Return the records of the same delivery, of which nothing is known yet."""
        return records_of(self.names, self.worker, self.delivered, self.now, self.own)

    @property
    def queue(self) -> str:
        return self.names.queue

    def at(self, *tokens: str | int) -> str:
        """Return the subject of what it remembers in this round, by its kind and other tokens."""
        return self.names.memory_subject(self.id, *tokens, *((ROUND, self.round) if self.round else ()))

    @property
    def last_error(self) -> str:
        """Why the previous attempt failed, or empty."""
        return "" if self.known is None else self.known.error

    # --- before

    def read(self) -> Finish | None:
        """Read the message; return the end of one that is not a valid job, or whose time to live was over before."""
        try:
            envelope = decode_stored(self.delivered.data)
        except UNREADABLE as error:
            return Finish("failed", f"the message is not a valid job: {error}")
        self.envelope = envelope = envelope if envelope.flow is None else with_own_name(envelope)
        if envelope.id:
            self.id = envelope.id
        return TOO_LATE if envelope.expires and self.lives_for() <= 0 else None

    def _seconds_left(self, until: int, now: int) -> float:
        """Return how many seconds are left until a time that was stored with the job; the clock may have jumped since.

        A scheduled job is stored anew when it falls due: by how much it had jumped before is in a header.
        """
        block = self.delivered.headers if self.envelope.due else None
        jumped = self.delivered.jumped_ns
        with suppress(ValueError):
            jumped += int((block and headers.first(block, headers.JUMPED)) or 0)
        return (until + jumped - now) / 1e9

    def lives_for(self) -> float:
        """Return in how many seconds its time to live is over if it has not begun by then; infinity: it lives on."""
        # One that began before sleeps, has snoozed, or is tried again.
        has_begun = self.attempt > 1 or (self.known is not None and self.known.began)
        if has_begun or not self.envelope.expires:
            return inf
        # One clock alone, which may be wrong, ends nothing.
        return self._seconds_left(self.envelope.expires, min(self.now(), self.own()))

    def learn(self, known: Attempt | None) -> None:
        """Add what is known of all earlier deliveries; those that were not begun do not count."""
        self.known = known
        if known is not None:
            self.attempt = self.delivered.num_delivered - known.returned

    def begin(self, now: int) -> None:
        """Note that its function is called now."""
        self.has_begun, self.started = True, now

    @property
    def begun_attempts(self) -> int:
        """How many attempts have begun, this one included."""
        return self.attempt if self.has_begun else self.attempt - 1

    @property
    def _counts(self) -> bool:
        """Whether this delivery is an attempt, or undoes one that has told its error."""
        if self.undoing is None:
            return self.has_begun
        return self.known is not None and self.known.undo is not None

    # --- after

    def after_result(self, result: msgspec.Raw, emitted: Sequence[Outgoing], now: int) -> Ended:
        """Return the end of a job that has completed, with the messages it emitted."""
        outcome = self._outcome(COMPLETED, result, now, self.known.errors if self.known is not None else ())
        record = Outgoing(self.names.completed_prefix + self.id, _encode(outcome))
        # As they are now: whoever still holds the context can't add to what is written down.
        envelope = self.envelope
        if envelope.flow is not None or envelope.unique_until or envelope.timetable is not None:
            emitted = (*emitted, *self._notes(outcome))
        one = self.delivered
        ack = AckOp(seq=one.seq, consumer_seq=one.consumer_seq, num_delivered=one.num_delivered, token=one.token)
        return Ended(one, ack, (*emitted, record))

    def after(self, decision: AfterAttempt, now: int) -> Ended:
        """Return the end of an attempt that has not completed its job."""
        if isinstance(decision, Finish) and self.has_undo and self.undoing is None:
            decision = PutOff(0.0, f"it is undone: {decision.error}", began=True, undo=decision)
        if isinstance(decision, PutOff):
            return self.put_off(decision, now)
        return self._again(decision, now) if isinstance(decision, Again) else self._end(decision, now)

    def _end(self, finish: Finish, now: int) -> Ended:
        """Return another end of a job; a failed one leaves a dead letter."""
        outcome = self._outcome(finish, NOTHING, now, self._errors(finish.error, now))
        record = Outgoing(self.names.ending_subject(outcome.state, self.id), _encode(outcome))
        notes = () if finish is SKIPPED else self._notes(outcome)
        if finish.by_order:
            notes = (*notes, carried_out(self.names, self.id))
        if has_letter := finish.state == "failed":
            notes = (*notes, self._letter(outcome))
        return Ended(self.delivered, ack_of(self.delivered, "ack"), (*notes, record), has_letter=has_letter)

    def _notes(self, outcome: Outcome) -> tuple[Outgoing, ...]:
        """Return the extra messages of an ending: for the job's flow, its unique place, or its schedule's last run."""
        if self.envelope.flow is not None:
            return (told_to_flow(self.names, self.envelope.flow, outcome),)
        left = ceil(self._seconds_left(self.envelope.unique_until, self.now())) if self.envelope.unique_until else 0
        if left > 0:
            kept = msgspec.structs.replace(self.envelope, args=NOTHING, id=self.id)
            block = headers.encode({headers.TTL: f"{left}s"})
            return (Outgoing(self.names.keeping(self.delivered.subject), _encode(kept), block),)
        if self.envelope.timetable is None:
            return ()
        leaf = self.names.leaf_of(self.delivered.subject)
        return (Outgoing(self.names.last_run(leaf), _encode(LastRun(id=self.id, finished_at=outcome.finished_at))),)

    def _again(self, again: Again, now: int) -> Ended:
        """Return the end of an attempt that failed and is not the last."""
        record = Attempt(
            id=self.id,
            attempt=self.attempt,
            error=again.error,
            returned=self.known.returned if self.known is not None else 0,
            retry_at=now + int(again.delay * 1e9),
            began=True,
            errors=self._errors(again.error, now),
            job=self.envelope.job,
            key=self.envelope.key,
            undo=self.known.undo if self.known is not None else None,
            version=self.known.version if self.known is not None else "",
        )
        return self._given_back(record, again.delay)

    def handed_back(self) -> Ended:
        """Return the end of a delivery that is not counted, also of a job that was not looked at yet."""
        if self.envelope is _UNREAD:
            # It may have an id of its own, by which the record is found.
            self.read()
        known = self.known or Attempt(id=self.id, attempt=0)
        record = msgspec.structs.replace(known, returned=known.returned + 1, retry_at=0, limit="", put_off=None)
        return self._given_back(record)

    def put_off(self, why: PutOff, now: int, kept: Sequence[Outgoing] = ()) -> Ended:
        """Return the end of a delivery that is not counted, of a job that is to start later; ``kept`` is published."""
        known = self.known or Attempt(id=self.id, attempt=0)
        delay = why.delay
        if delay is None:
            delay = min(_PUT_OFF_S * 2 ** min(known.returned, 10), _LONGEST_PUT_OFF_S)
        retry_at = now + int(delay * 1e9)
        signal = "" if why.signal == CALLS else decode_key(why.signal)
        record = msgspec.structs.replace(
            known, returned=known.returned + 1, retry_at=retry_at,
            waits=why.reason[:_LONGEST_ERROR],
            began=known.began or why.began,
            sleeps=why.began,
            limit="" if why.limit is None else why.limit.name,
            put_off=self._put_off_for(why),
            waits_for=SignalWait(signal, now, why.until) if why.signal not in ("", CANCEL) else None,
            is_stuck=why.is_stuck,
            undo=why.undo or known.undo,
            version=why.version or known.version,
        )  # fmt: skip
        if why.awaits:
            # Its worker may die before it can tell.
            kept = (*kept, version_order(self.names, self.id, why.awaits))
        if not why.signal:
            return self._given_back(record, delay, kept)
        # The record of the wait is last: it is refused if there is a signal that was stored before the others.
        ended = self._given_back(record, delay)
        return msgspec.structs.replace(ended, messages=(*ended.messages, *kept))

    def begin_anew(self, args: bytes, now: int) -> Ended:
        """Return the end of a round: the job begins anew, with other arguments and an empty memory."""
        record = StepRecord(result=msgspec.Raw(args), seq=self.round + 1)
        # Of an attempt that was replaced, on a cluster: not twice.
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(self.round_seq)})
        kept = Outgoing(self.names.memory_subject(self.id, "round"), _encode(record), block)
        waits, returned = "it begins anew", self.delivered.num_delivered
        known = Attempt(id=self.id, attempt=0, returned=returned, retry_at=now, began=True, waits=waits, sleeps=True)
        return self._given_back(known, 0.0, (kept,))

    def need_not_wait(self, ended: Ended) -> Ended:
        """Return the end of a delivery of a job that was to wait for a signal, and starts again at once."""
        assert ended.known is not None, "it was put off"
        known = msgspec.structs.replace(ended.known, retry_at=0, put_off=None)
        return self._given_back(known, 0.0, [Outgoing(kept.subject, kept.data) for kept in ended.messages[1:]])

    def _put_off_for(self, why: PutOff) -> PutOffDelivery | None:
        scope, limit = (FOR_SIGNAL, why.signal) if why.signal else (why.pause, "")
        if why.limit is not None:
            scope, limit = why.limit.scope, why.limit.text
        elif why.awaits:
            scope, limit = FOR_VERSION, why.awaits
        if not scope:
            return None
        one = self.delivered
        return PutOffDelivery(
            scope, limit, one.consumer, one.subject, one.seq, one.consumer_seq, one.num_delivered, one.token,
            why.is_given or one.consumer == CLAIMED, wanted=why.wanted,
        )  # fmt: skip

    def _errors(self, error: str, now: int) -> tuple[AttemptError, ...]:
        """Return the errors of all attempts so far; of many, the first and the last ones."""
        before = self.known.errors if self.known is not None else ()
        if not self._counts:
            return before
        return _with_error(before, AttemptError(self.attempt, now, error[:_LONGEST_ERROR]))

    def _given_back(self, known: Attempt, delay: float = 0.0, kept: Sequence[Outgoing] = ()) -> Ended:
        ack = ack_of(self.delivered, "nak", delay_ns=int(delay * 1e9), cause=cause_of(known))
        record = Outgoing(self.names.attempt_subject(self.id), _encode(known))
        return Ended(self.delivered, ack, (*kept, record), known)

    def _letter(self, outcome: Outcome) -> Outgoing:
        unread = self.delivered if not self.envelope.job else None
        subject, data = (unread.subject, unread.data) if unread else ("", b"")
        letter = DeadLetter(outcome=outcome, envelope=self.envelope, subject=subject, data=data)
        return Outgoing(self.names.dead_subject(self.id), _encode(letter))

    def _outcome(self, finish: Finish, result: msgspec.Raw, now: int, errors: tuple[AttemptError, ...] = ()) -> Outcome:
        return Outcome(
            id=self.id,
            job=self.envelope.job,
            state=finish.state,
            key=self.envelope.key,
            attempt=self.attempt if self._counts else self.attempt - 1,
            worker=self.worker,
            enqueued_at=self.delivered.time_ns,
            started_at=self.started,
            finished_at=now,
            result=result,
            error=finish.error,
            traceback=finish.traceback,
            errors=errors,
            events=self.events,
        )


def records_of(
    names: QueueNames, worker: str, delivered: Delivered, now: Callable[[], int] = int, own: Callable[[], int] = int
) -> AttemptRecords:
    """Return the records of a delivery; who gives it back without a look needs no clocks."""
    return AttemptRecords(names, worker, delivered, now, own, str(delivered.seq), delivered.num_delivered)


# --- what a job of a flow, or a called one, tells


def told_to_flow(names: QueueNames, place: FlowPlace, outcome: Outcome) -> Outgoing:
    """Return the message that is stored with the outcome of a job of a flow, or of a called one, or before it."""
    if (caller := place.caller) is not None:
        return Outgoing(QueueNames(caller[0]).memory_subject(caller[1], "signal", CALLS, outcome.id), _encode(outcome))
    return Outgoing(names.flow_told(place.flow, outcome.id), _encode(node_end(place, outcome)))


def redriven_in_flow(names: QueueNames, place: FlowPlace, job_id: str) -> Outgoing:
    return Outgoing(names.flow_log(place.flow), _encode(NodeAgain(node=place.node, id=job_id)))
