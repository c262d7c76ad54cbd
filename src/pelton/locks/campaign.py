"""When to write the key of an election, and when to call oneself its leader: decisions only, no time and no store.

Design: An election is one key of a bucket whose TTL is the term. Who creates the key holds it, renews it by an
update of the revision it wrote last, and has lost it when that is refused. This is what nats-kv-leader-elect does, and
its candidates and ours respect each other on one bucket. What follows is what makes it *never two leaders*.

**The leader's side.** A term counts from before its last successful write was sent, by the leader's own boot-time
clock: whatever a reply, a thread or a disk took is on its account. It renews at 75 % of the TTL and stands down at 90
% (``STAND_DOWN``) unless a renewal was confirmed; at once when it hears of somebody else's write, or that the key is
gone.

**The successor's side.** Holding the key is not yet leading: the one before may not know. The win is announced at
``clear_at``, when everybody before must have stood down, by the successor's own clock. It is made of what
was seen:

- A write of somebody seen at ``o`` was sent before ``o``: its writer has stood down at ``o`` + 95 % of the TTL
  (``CLEAR``). The 5 % between the two sides are for clocks that do not run alike.
- A mark that a leader left when it stepped down: it had stood down before it wrote that, and had announced its own
  win, so those before it had stood down, too. Nothing is waited for. (One that steps down before it announced leaves a
  plain deletion.)
- Another end of the key (expired, deleted by hand) tells nothing new: what was seen before still counts.
- A bucket in which nothing was ever written: nobody is waited for.

What was *not* seen is the danger: a write may come and vanish between two looks (a store's wall clock that is set
forward ends keys early). So each step must be **proven** to follow what was seen: our write was made on condition of
exactly that revision, or it is the very next sequence of the stream. What is not proven counts as a write seen at the
last moment it can have been made: a full wait from then. No decision trusts a wall clock, the store's expiry least of
all: it may come early, late or never.

**A crash.** Candidates do not wait for the expiry. When a leader's write is 95 % of a TTL old as they saw it, they
update the key themselves, on condition of that revision: proven, so announced at once.

**Candidates of nats-kv-leader-elect.** Its leader stands down when an update fails, asked for at 75 % of the TTL;
where no answer comes, its client gives up after 5 s, before 92 % of the 30 s and more that it insists on: inside
``CLEAR``. Deleted by hand, its key is missed at the next update, within the same time of its last one. Its winner
waits 75 % of the TTL, which covers ours except where a key ended early and ours could not reach the store to hear of
it. It leaves no mark when it stops: that looks like a crash.

**Lost replies.** A write without an answer is repeated with the same message id, so that it lands once, and counts
from its first sending. Where the stream has forgotten the id, a look at the key shows whose write stands there.

Time is counted since boot, so that a term ends while its machine sleeps, too. What this cannot know: a program that
goes on after its term, because it was stopped between looking and acting. For that there is the fencing token: the
revision of the write that won, which only grows while the bucket exists.

One operation is under way at a time: ``next`` hands it out, ``wrote``, ``refused``, ``failed`` or ``looked`` end it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from pelton.runtime import LeaseClock, LeaseShares

# Shares of the TTL: the age at which a write is renewed, its writer has stood down, and others count on that.
RENEW: Final = 0.75
STAND_DOWN: Final = 0.9
CLEAR: Final = 0.95
SHARES: Final = LeaseShares(renew=RENEW, stop=STAND_DOWN, again=0.02, longest_try=0.1)

State = Literal["unknown", "candidate", "leader"]
"""``unknown`` before an election is run, and after."""
SightKind = Literal["put", "released", "ended", "absent"]


class Observation(msgspec.Struct, frozen=True):
    """What a key was seen to hold: somebody's write, the mark of a leader that stepped down, another mark, nothing.

    ``revision`` is that of the last message, for ``absent`` the last sequence of the stream, read afterwards; of what
    was released, ``gave_up`` is the revision that was given up.
    """

    kind: SightKind
    revision: int
    msg_id: str = ""
    gave_up: int = 0


@dataclass(slots=True)
class WriteRecord:
    """Write our name if ``expected`` is the last revision of the key (0: there is none)."""

    expected: int
    msg_id: str
    sent: float
    follows: int
    repeated: bool = False


class ReadRecord(msgspec.Struct, frozen=True):
    """Look what the key holds."""


class DeleteRecord(msgspec.Struct, frozen=True):
    """Delete the key if ``expected`` is its last revision; ``clean`` if nobody else has to be waited for."""

    expected: int
    clean: bool


class Won(msgspec.Struct, frozen=True):
    """A term began."""

    token: int


class Lost(msgspec.Struct, frozen=True):
    """The term ended, and why."""

    reason: str


class Campaigned(msgspec.Struct, frozen=True):
    """The key was written, or tried to be, in this state."""

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

    ``new_id`` makes message ids; ``pause`` says how long to wait after so many failures; ``spread`` (seconds) is
    this candidate's delay before it takes over a key nobody renews, so that not all do it at once. ``once``: no
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
    # How far the stream is known, -1: not at all; the key's last message known, 0: none.
    _seen: int = -1
    _last: int = 0
    _kind: SightKind = "absent"
    _fresh: bool = True
    _writing: WriteRecord | None = None
    _busy: bool = False
    _unsure: bool = True
    # The revision that was given up for somebody else, 0: none.
    _gave_up: int = 0
    _tries: int = 0
    _news: list[News] = field(default_factory=list)

    # --- what there is to do

    @property
    def state(self) -> State:
        """Whether we lead."""
        return "leader" if self.hold is not None and self.hold.announced else "candidate"

    @property
    def is_busy(self) -> bool:
        """Whether an operation is under way."""
        return self._busy

    @property
    def stands_until(self) -> float:
        """When the term ends unless it is renewed."""
        return 0.0 if self.hold is None else self.hold.lease.over_at

    def news(self) -> list[News]:
        """Return what has happened since the last call."""
        found, self._news = self._news, []
        return found

    def next(self, now: float) -> WriteRecord | ReadRecord | None:
        """Return what is to be done now, if anything; it is under way from then on."""
        self.tick(now)
        if self._busy or now < self._acts_at():
            return None
        self._busy = True
        if self._unsure:
            return ReadRecord()
        if self._writing is None:
            self._writing = WriteRecord(self._last, self.new_id(), now, self._seen + 1)
        self._news.append(Campaigned(self.state))
        return self._writing

    def wake_at(self) -> float | None:
        """Return when to call :meth:`next` again if nothing happens; None: not before something does."""
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
        """Take notice of the time."""
        hold = self.hold
        if hold is None:
            return
        if now >= self.stands_until:
            self._lose(now, "it could not be renewed in time")
        elif not hold.announced and now >= hold.announce_at:
            hold.announced = True
            self._news.append(Won(hold.token))

    # --- how it ended

    def wrote(self, now: float, revision: int) -> None:
        """The write is stored as ``revision``."""
        self.tick(now)
        self._busy = False
        write, self._writing = self._writing, None
        if write is None:
            # Given up meanwhile: what stands there now?
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

    def refused(self, now: float) -> None:
        """The write was refused: the key's last revision is another one."""
        self.tick(now)
        self._busy = False
        if self._writing is not None and not self._writing.repeated:
            self._writing = None
            if self.hold is not None:
                self._lose(now, "somebody else wrote or deleted the key")
        # One that was repeated may have been stored the first time: the key will tell by its message id.
        self._unsure = True
        self._later(now)

    def failed(self, now: float) -> None:
        """Nobody knows what became of the write, or the look could not be had."""
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

    def looked(self, now: float, observation: Observation) -> None:
        """The look showed this."""
        self._unsure = False
        writing = self._writing
        if writing is not None and observation.msg_id == writing.msg_id:
            self.wrote(now, observation.revision)
            return
        self._busy = False
        if self.hold is None and 0 <= observation.revision <= self._seen and observation.kind != "absent":
            self._saw_again(now, observation)
        else:
            self.saw(now, observation)

    def _saw_again(self, now: float, observation: Observation) -> None:
        """What is known, or less: a replica that lags, or another bucket of the same name."""
        if observation.revision != self._last or observation.kind != self._kind:
            self.clear_at = now + self.ttl * CLEAR
            self._last, self._kind, self._writing = observation.revision, observation.kind, None

    # --- what is seen

    def saw(self, now: float, observation: Observation) -> None:
        """The key was seen to hold this, at some time before ``now``; in the order of revisions."""
        self.tick(now)
        if observation.kind == "absent":
            self._saw_nothing(now, observation.revision)
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
            # Somebody else has had it since, if only for a moment that was not seen.
            self._gave_up, self.due = 0, now

    def _saw_nothing(self, now: float, last: int) -> None:
        self._yield(now)
        if self._fresh and last == 0:
            self.clear_at = now
        elif last != self._seen:
            self.clear_at = now + self.ttl * CLEAR
        self._know(last, "absent")
        self._last = 0

    def _yield(self, now: float) -> None:
        """Somebody else's doing was seen."""
        if self.hold is not None:
            self._lose(now, "somebody else wrote or deleted the key")
        self._writing = None
        self._unsure = False

    def forget(self, now: float) -> None:
        """The bucket is another one: nothing that was seen counts, and who led may lead still."""
        if self.hold is not None:
            self._lose(now, "the bucket is gone")
        self._know(-1, "absent")
        self._last, self.clear_at, self._writing = 0, now + self.ttl * CLEAR, None
        self.recheck()

    def recheck(self) -> None:
        """Something may have gone unseen: look."""
        if self.hold is None:
            self._unsure = True

    # --- the end of a term

    def doubted(self, now: float, token: int) -> None:
        """Somebody was told by the clock that this term is over: so it is, even if a renewal was under way."""
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
        """Hold the key no more; who was before us, and no one since, must still have stood down."""
        hold, self.hold = self.hold, None
        assert hold is not None
        self.clear_at = now if hold.announced else max(now, hold.announce_at)
        self._know(hold.revision, "put")
        self._writing = None
        self._tries, self.due = 0, now

    def release(self, now: float, rest: float) -> DeleteRecord | None:
        """Give the key up, and campaign again when somebody else holds it, or after ``rest`` seconds.

        What was announced must be at an end: the next leader will not wait. Returns what is to be done, if anything.
        """
        self.tick(now)
        hold = self.hold
        if hold is None:
            return None
        self._drop(now)
        self._gave_up, self.due = hold.revision, now + rest
        return DeleteRecord(hold.revision, hold.announced)
