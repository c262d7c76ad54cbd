"""When to write the key of an election, and when to announce leadership: decisions only, no time and no store.

Design: An election is one key of a bucket whose TTL is the term. The candidate that creates the key holds it, renews it
by an update of the revision it wrote last, and has lost it when that is refused. This is what nats-kv-leader-elect
does, and its candidates and ours respect each other on one bucket. The following rules guarantee *never two leaders*.

**The leader's side.** A term counts from before its last successful write was sent, by the leader's own boot-time
clock: delays of a reply, a thread or a disk shorten its term. It renews at 75 % of the TTL and stands down at 90
% (``STAND_DOWN``) unless a renewal was confirmed; at once when it sees another candidate's write, or that the key is
gone.

**The successor's side.** Holding the key is not yet leading: the previous leader may not know. The win is announced at
``clear_at``, when all predecessors must have stood down, by the successor's own clock. It is computed from
observations:

- A write of another candidate observed at ``o`` was sent before ``o``: its writer has stood down at ``o`` + 95 % of the
  TTL (``CLEAR``). The 5 % between the two sides allow for differing clock rates.
- A marker that a leader left when it stepped down: it had stood down before it wrote that, and had announced its own
  win, so its predecessors had stood down, too. No wait is needed. (A candidate that steps down before it announced
  leaves a plain deletion.)
- Another end of the key (expired, deleted by hand) adds no information: earlier observations still count.
- A bucket in which nothing was ever written: no wait is needed.

The danger is what was *not* observed: a write may come and vanish between two reads (a store whose wall clock is set
forward expires keys early). So each step must be **proven** to follow what was observed: our write was conditional on
exactly that revision, or it is the very next sequence of the stream. Anything unproven counts as a write observed at
the last moment it can have been made: a full wait from then. No decision trusts a wall clock, least of all the store's
expiry: it may come early, late or never.

**A crash.** Candidates do not wait for the expiry. When a leader's write, as observed, is 95 % of a TTL old, they
update the key themselves, conditional on that revision: proven, so announced at once.

**Candidates of nats-kv-leader-elect.** Its leader stands down when an update fails, requested at 75 % of the TTL;
if no answer comes, its client gives up after 5 s, before 92 % of the 30 s and more that it requires: inside
``CLEAR``. If its key is deleted by hand, it notices at the next update, within the same time of its last one. Its
winner waits 75 % of the TTL, which covers ours except if a key expired early and ours could not reach the store to
learn of it. It leaves no marker when it stops: that looks like a crash.

**Lost replies.** A write without an answer is repeated with the same message id, so that it is stored once, and counts
from its first sending. If the stream has forgotten the id, a read of the key shows whose write it holds.

Time is counted since boot, so that a term also ends while its machine sleeps. These rules cannot cover a program that
continues after its term, because it was suspended between checking and acting. For that there is the fencing token: the
revision of the write that won, which only grows, also through deletions of the bucket (``buckets/bucket.py``).

One operation is in progress at a time: ``next`` returns it, ``wrote``, ``refused``, ``failed`` or ``looked`` end it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from pelton.runtime import LeaseClock, LeaseShares

# Shares of the TTL: the age at which a write is renewed, its writer has stood down, and others rely on that.
RENEW: Final = 0.75
STAND_DOWN: Final = 0.9
CLEAR: Final = 0.95
SHARES: Final = LeaseShares(renew=RENEW, stop=STAND_DOWN, again=0.02, longest_try=0.1)

State = Literal["unknown", "candidate", "leader"]
"""``unknown`` before an election is run, and after."""
SightKind = Literal["put", "released", "ended", "absent"]


class Observation(msgspec.Struct, frozen=True):
    """An observed content of a key: a candidate's write, the marker of a leader that stepped down, another marker,
    nothing.

    ``revision`` is the last message's, for ``absent`` the last sequence of the stream, read before the key was
    found absent: ``is_unused`` if that was never given. For a release, ``gave_up`` is the revision that was given up.
    """

    kind: SightKind
    revision: int
    msg_id: str = ""
    gave_up: int = 0
    is_unused: bool = False


@dataclass(slots=True)
class WriteRecord:
    """Write our name if ``expected`` is the last revision of the key (0: there is none)."""

    expected: int
    msg_id: str
    sent: float
    follows: int
    repeated: bool = False


class ReadRecord(msgspec.Struct, frozen=True):
    """Read the key."""


class DeleteRecord(msgspec.Struct, frozen=True):
    """Delete the key if ``expected`` is its last revision; ``clean`` if no predecessor has to be waited for."""

    expected: int
    clean: bool


class Won(msgspec.Struct, frozen=True):
    """A term began."""

    token: int


class Lost(msgspec.Struct, frozen=True):
    """The term ended, and why."""

    reason: str


class Campaigned(msgspec.Struct, frozen=True):
    """A write of the key was attempted in this state."""

    state: State


News = Won | Lost | Campaigned


@dataclass(slots=True)
class TermHold:
    """Our hold on the key: a term once it is announced."""

    token: int
    revision: int
    lease: LeaseClock
    announce_at: float
    announced: bool = False


@dataclass(slots=True)
class Campaign:
    """A candidate. Times are seconds since boot, by one clock, ``now`` never goes back.

    ``new_id`` makes message ids; ``pause`` returns how long to wait after a number of failures; ``spread`` (seconds) is
    this candidate's delay before it takes over a key that is not renewed, so that not all do it at once. ``once``: no
    second term.
    """

    ttl: float
    new_id: Callable[[], str]
    pause: Callable[[int], float]
    spread: float = 0.0
    once: bool = False
    due: float = 0.0
    hold: TermHold | None = None
    clear_at: float = 0.0
    # The last known sequence of the stream, -1: none; the last known message of the key, 0: none.
    _seen: int = -1
    _last: int = 0
    _kind: SightKind = "absent"
    _fresh: bool = True
    _writing: WriteRecord | None = None
    _busy: bool = False
    _unsure: bool = True
    # The last known sequence when the key was last asked for.
    _seen_when_asked: int = -1
    # The revision that was given up for another candidate, 0: none.
    _gave_up: int = 0
    _tries: int = 0
    _news: list[News] = field(default_factory=list)

    # --- the next operation

    @property
    def state(self) -> State:
        return "leader" if self.hold is not None and self.hold.announced else "candidate"

    @property
    def is_busy(self) -> bool:
        """Whether an operation is in progress."""
        return self._busy

    @property
    def stands_until(self) -> float:
        """When the term ends unless it is renewed."""
        return 0.0 if self.hold is None else self.hold.lease.over_at

    def news(self) -> list[News]:
        """Return the events since the last call."""
        news, self._news = self._news, []
        return news

    def next(self, now: float) -> WriteRecord | ReadRecord | None:
        """Return the operation to do now, if any; it is in progress from then on."""
        self.tick(now)
        if self._busy or now < self._acts_at():
            return None
        self._busy = True
        if self._unsure:
            self._seen_when_asked = self._seen
            return ReadRecord()
        if self._writing is None:
            self._writing = WriteRecord(self._last, self.new_id(), now, self._seen + 1)
        self._news.append(Campaigned(self.state))
        return self._writing

    def wake_at(self) -> float | None:
        """Return when to call :meth:`next` again if nothing happens; None: only after an event."""
        times = [] if self._busy else [self._acts_at()]
        if self.hold is not None:
            times.append(self.stands_until)
            if not self.hold.announced:
                times.append(self.hold.announce_at)
        first = min(times, default=math.inf)
        return None if first == math.inf else first

    def _acts_at(self) -> float:
        if self._unsure:
            return self.due
        if self.hold is not None:
            return max(self.due, self.hold.lease.due_at)
        return max(self.due, self.clear_at + self.spread) if self._kind == "put" else self.due

    def tick(self, now: float) -> None:
        """Take note of the time."""
        hold = self.hold
        if hold is None:
            return
        if now >= self.stands_until:
            self._lose(now, "it could not be renewed in time")
        elif not hold.announced and now >= hold.announce_at:
            hold.announced = True
            self._news.append(Won(hold.token))

    # --- its outcome

    def wrote(self, now: float, revision: int) -> None:
        """The write is stored as ``revision``."""
        self.tick(now)
        self._busy = False
        write, self._writing = self._writing, None
        if write is None:
            # It was given up during the write: read the key again.
            self._unsure = True
            return
        self._tries, self.due = 0, now
        if self.hold is not None:
            self.hold.revision = revision
            self.hold.lease.confirm(write.sent)
        else:
            lease = LeaseClock(write.sent, self.ttl, SHARES)
            self.hold = TermHold(revision, revision, lease, self._announce_at(now, write, revision))
        self._know(revision, "put")
        self._unsure = False
        self.tick(now)

    def _announce_at(self, now: float, write: WriteRecord, revision: int) -> float:
        proven = write.expected > 0 or revision == write.follows
        return self.clear_at if proven else now + self.ttl * CLEAR

    def _know(self, revision: int, kind: SightKind) -> None:
        self._seen = self._last = revision
        self._kind, self._fresh = kind, False

    def on_refusal(self, now: float) -> None:
        """The write was refused: the key's last revision is another one."""
        self.tick(now)
        self._busy = False
        if self._writing is not None and not self._writing.repeated:
            self._writing = None
            if self.hold is not None:
                self._lose(now, "another client wrote or deleted the key")
        # A repeated write may have been stored the first time: the key's message id will show it.
        self._unsure = True
        self._later(now)

    def on_failure(self, now: float) -> None:
        """The outcome of the write is unknown, or the read failed."""
        self.tick(now)
        self._busy = False
        if self._writing is not None:
            self._writing.repeated = True
            if self.hold is None and now - self._writing.sent > self.ttl * RENEW:
                self._writing, self._unsure = None, True
        self._later(now)

    def _later(self, now: float) -> None:
        self._tries += 1
        if self.due < math.inf:
            self.due = now + (self.pause(self._tries) if self.hold is None else self.hold.lease.pause)

    def on_read(self, now: float, observation: Observation) -> None:
        self._unsure = False
        writing = self._writing
        if writing is not None and observation.msg_id == writing.msg_id:
            self.wrote(now, observation.revision)
            return
        self._busy = False
        if self._seen > max(self._seen_when_asked, observation.revision):
            # What the follower received meanwhile is newer: read again.
            self._unsure = True
        elif self.hold is None and 0 <= observation.revision <= self._seen and observation.kind != "absent":
            self._saw_again(now, observation)
        else:
            self.saw(now, observation)

    def _saw_again(self, now: float, observation: Observation) -> None:
        """Handle an observation that is not newer: a replica that lags, or another bucket of the same name."""
        if observation.revision != self._last or observation.kind != self._kind:
            self.clear_at = now + self.ttl * CLEAR
            self._last, self._kind, self._writing = observation.revision, observation.kind, None

    # --- observations

    def saw(self, now: float, observation: Observation) -> None:
        """The key was observed to hold this, at some time before ``now``; call it in the order of revisions."""
        self.tick(now)
        if observation.kind == "absent":
            self._saw_nothing(now, observation.revision, is_unused=observation.is_unused)
            return
        if observation.revision <= self._seen:
            return
        if self._writing is not None and observation.msg_id == self._writing.msg_id:
            return
        self._yield(now)
        if observation.kind == "released":
            self.clear_at = now
        elif observation.kind == "put" or self._seen < 0 or observation.revision != self._seen + 1:
            self.clear_at = now + self.ttl * CLEAR
        self._know(observation.revision, observation.kind)
        if self._gave_up and observation.gave_up != self._gave_up and self.due < math.inf:
            # Another candidate has held it since, even if that was not observed.
            self._gave_up, self.due = 0, now

    def _saw_nothing(self, now: float, last: int, *, is_unused: bool) -> None:
        self._yield(now)
        if self._fresh and is_unused:
            self.clear_at = now
        elif last != self._seen:
            self.clear_at = now + self.ttl * CLEAR
        self._know(last, "absent")
        self._last = 0

    def _yield(self, now: float) -> None:
        """Handle another candidate's write."""
        if self.hold is not None:
            self._lose(now, "another client wrote or deleted the key")
        self._writing = None
        self._unsure = False

    def forget(self, now: float) -> None:
        """The bucket was replaced: no observation counts, and the previous leader may still lead."""
        if self.hold is not None:
            self._lose(now, "the bucket is gone")
        self._know(-1, "absent")
        self._last, self.clear_at, self._writing = 0, now + self.ttl * CLEAR, None
        self.recheck()

    def recheck(self) -> None:
        """A change may have been missed: read the key."""
        if self.hold is None:
            self._unsure = True

    # --- the end of a term

    def doubt(self, now: float, token: int) -> None:
        """A caller saw by the clock that this term is over: so it is, even if a renewal was in progress."""
        self.tick(now)
        if self.hold is not None and self.hold.token == token:
            self._lose(now, "it could not be renewed in time")

    def _lose(self, now: float, reason: str) -> None:
        hold = self.hold
        assert hold is not None
        self._drop(now)
        self._unsure = True
        if hold.announced:
            self._news.append(Lost(reason))
            if self.once:
                self.due = math.inf

    def _drop(self, now: float) -> None:
        """Give up the hold on the key; predecessors from before it, and none since, must still have stood down."""
        hold, self.hold = self.hold, None
        assert hold is not None
        self.clear_at = now if hold.announced else max(now, hold.announce_at)
        self._know(hold.revision, "put")
        self._writing = None
        self._tries, self.due = 0, now

    def release(self, now: float, rest: float) -> DeleteRecord | None:
        """Give the key up, and campaign again when another candidate holds it, or after ``rest`` seconds.

        An announced term must have ended: the next leader will not wait. Returns the operation to do, if any.
        """
        self.tick(now)
        hold = self.hold
        if hold is None:
            return None
        self._drop(now)
        self._gave_up, self.due = hold.revision, now + rest
        return DeleteRecord(hold.revision, hold.announced)
