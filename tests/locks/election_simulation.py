"""A simulated election: the pure campaign of each candidate, one key, and everything that can fail.

Time is one manual clock, which each candidate's own clock follows at its own rate. Requests and replies are late or
lost, a request stays in flight after its sender gave up; candidates observe the key late, in order, with gaps when they
were cut off; candidates are paused, crash and are replaced by new ones; the store's wall clock is stepped, so that keys
expire too early, or hardly ever, with markers or without; sometimes the key is deleted by hand.

The record holds when each candidate considered itself the leader, in true time, and with which token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from pelton.locks.campaign import Campaign, DeleteRecord, Lost, Observation, ReadRecord, Won, WriteRecord
from pelton.testing import ManualClock


@dataclass
class Troubles:
    """How much fails: shares from 0 to 1; delays in shares of the TTL."""

    lost: float = 0.0
    slow: float = 0.0
    drift: float = 0.0
    pauses: float = 0.0
    crashes: float = 0.0
    cuts: float = 0.0
    steps: float = 0.0
    meddling: float = 0.0
    resigning: float = 0.0


class Term(NamedTuple):
    """A period of leadership."""

    who: str
    token: int
    begin: float
    end: float


@dataclass
class Stored:
    kind: str
    revision: int
    msg_id: str
    wall: float
    lives: float
    gave_up: int = 0


class Store:
    """One key as a stream stores it, with a wall clock that can be stepped."""

    def __init__(self, election_simulation: Village, *, marks: bool, neighbours: bool) -> None:
        self.election_simulation = election_simulation
        self.marks = marks
        self.neighbours = neighbours
        self.offset = 0.0
        self.last = 0
        self.held: Stored | None = None
        self.ids: dict[str, tuple[int, float]] = {}

    def wall(self) -> float:
        return self.election_simulation.now() + self.offset

    def expire(self) -> None:
        held = self.held
        if held is None or self.wall() - held.wall < held.lives:
            return
        self.held = None
        if self.marks and held.kind == "put":
            self._store("ended", "", self.election_simulation.ttl)

    def _store(self, kind: str, msg_id: str, lives: float, gave_up: int = 0) -> int:
        if self.neighbours and self.election_simulation.rnd.random() < 0.3:
            self.last += 1
        self.last += 1
        self.held = Stored(kind, self.last, msg_id, self.wall(), lives, gave_up)
        self.election_simulation.tell(self.observation())
        return self.last

    def observation(self) -> Observation:
        self.expire()
        if self.held is None:
            return Observation("absent", self.last, is_unused=not self.last)
        held = self.held
        return Observation(held.kind, held.revision, held.msg_id, held.gave_up)  # type: ignore[arg-type]

    def write(self, kind: str, expected: int, msg_id: str, gave_up: int = 0) -> int | None:
        self.expire()
        known = self.ids.get(msg_id)
        if known is not None and abs(self.wall() - known[1]) < self.election_simulation.ttl:
            return known[0]
        if expected != (self.held.revision if self.held else 0):
            return None
        lives = float("inf") if kind == "released" and self.marks else self.election_simulation.ttl
        revision = self._store(kind, msg_id, lives, gave_up if kind == "released" else 0)
        if msg_id:
            self.ids[msg_id] = (revision, self.wall())
        return revision


class Candidate:
    """A candidate: the pure campaign with its own network and clock."""

    def __init__(self, election_simulation: Village, name: str) -> None:
        rnd = election_simulation.rnd
        self.election_simulation = election_simulation
        self.name = name
        self.rate = 1 + rnd.uniform(-election_simulation.troubles.drift, election_simulation.troubles.drift)
        self.alive = True
        self.paused = False
        self.cut = False
        self.inbox: deque[Callable[[], None]] = deque()
        self.seen_until = 0.0
        self.began: float | None = None
        self.token = 0
        self.number = 0
        self.operation = 0
        ttl = election_simulation.ttl
        self.campaign = Campaign(
            ttl,
            new_id=self._id,
            pause=lambda tries: ttl * 0.01 * min(tries, 10),
            spread=rnd.uniform(0, 0.02) * ttl,
            due=self.local(),
        )
        self.turn(lambda: None)

    def _id(self) -> str:
        self.number += 1
        return f"{self.name}.{self.number}"

    def local(self) -> float:
        return self.election_simulation.now() * self.rate

    # --- life

    def turn(self, what: Callable[[], None]) -> None:
        """Deliver an event to it, unless it is paused."""
        if not self.alive:
            return
        if self.paused:
            self.inbox.append(what)
            return
        limit = self.campaign.stands_until / self.rate
        what()
        asked = self.campaign.next(self.local())
        self._take_news(limit)
        if asked is not None:
            self.send(asked)
        wake = self.campaign.wake_at()
        if wake is not None:
            delay = max(wake / self.rate - self.election_simulation.now(), 1e-6)
            self.election_simulation.clock.call_later(
                delay + self.election_simulation.late(), lambda: self.turn(lambda: None)
            )

    def _take_news(self, limit: float) -> None:
        for news in self.campaign.news():
            if isinstance(news, Won):
                assert self.began is None
                self.began, self.token = self.election_simulation.now(), news.token
            elif isinstance(news, Lost):
                self.ended(limit)

    def ended(self, limit: float) -> None:
        assert self.began is not None
        # A caller that checks the term itself learns it no later than this.
        end = min(self.election_simulation.now(), limit)
        self.election_simulation.terms.append(Term(self.name, self.token, self.began, max(end, self.began)))
        self.began = None

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        inbox, self.inbox = self.inbox, deque()
        for what in inbox:
            self.turn(what)
        self.turn(lambda: None)

    def crash(self) -> None:
        if self.began is not None:
            self.ended(self.campaign.stands_until / self.rate)
        self.alive = False

    def resign(self) -> None:
        """Step down, as soon as nothing is in flight."""
        if self.campaign.is_busy:
            return
        limit = self.campaign.stands_until / self.rate
        asked = self.campaign.release(self.local(), self.election_simulation.ttl)
        self._take_news(limit)
        if asked is not None:
            if self.began is not None:
                self.ended(limit)
            self.send(asked)

    # --- network

    def send(self, asked: WriteRecord | ReadRecord | DeleteRecord) -> None:
        self.operation += 1
        mine = self.operation
        election_simulation = self.election_simulation
        patience = election_simulation.ttl * 0.1

        def answer(result: Callable[[], None]) -> None:
            def arrive() -> None:
                if self.operation == mine:
                    self.operation += 1
                    result()

            self.turn(arrive)

        def arrive() -> None:
            result = self._do(asked)
            if not self.lost():
                election_simulation.clock.call_later(election_simulation.late(), lambda: answer(result))

        if not self.lost():
            election_simulation.clock.call_later(election_simulation.late(), arrive)
        if isinstance(asked, DeleteRecord):
            return
        election_simulation.clock.call_later(patience, lambda: answer(lambda: self.campaign.on_failure(self.local())))

    def lost(self) -> bool:
        return self.cut or self.election_simulation.rnd.random() < self.election_simulation.troubles.lost

    def _do(self, asked: WriteRecord | ReadRecord | DeleteRecord) -> Callable[[], None]:
        store, campaign = self.election_simulation.store, self.campaign
        if isinstance(asked, ReadRecord):
            observation = store.observation()
            return lambda: campaign.on_read(self.local(), observation)
        if isinstance(asked, DeleteRecord):
            store.write("released" if asked.clean else "ended", asked.expected, "", asked.expected)
            return lambda: None
        revision = store.write("put", asked.expected, asked.msg_id)
        if revision is None:
            return lambda: campaign.on_refusal(self.local())
        return lambda: campaign.wrote(self.local(), revision)

    def see(self, observation: Observation) -> None:
        if self.cut or not self.alive:
            return
        now = self.election_simulation.now()
        self.seen_until = max(self.seen_until, now + self.election_simulation.late()) + 1e-9
        self.election_simulation.clock.call_later(
            self.seen_until - now, lambda: self.turn(lambda: self.campaign.saw(self.local(), observation))
        )

    def heal(self) -> None:
        self.cut = False
        observation = self.election_simulation.store.observation()
        if observation.kind != "absent":
            self.see(observation)
        self.turn(self.campaign.recheck)


@dataclass
class Village:
    """Some candidates, one key."""

    seed: int
    troubles: Troubles
    ttl: float = 10.0
    size: int = 3
    marks: bool = True
    neighbours: bool = False
    visitors: Sequence[Callable[[Village, str], Any]] = ()
    clock: ManualClock = field(default_factory=ManualClock)
    terms: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rnd = Random(self.seed)
        self.candidates: list[Any] = []
        self.store = Store(self, marks=self.marks, neighbours=self.neighbours)
        self.names = 0
        for _ in range(self.size):
            self.join()
        for number, make in enumerate(self.visitors):
            self.candidates.append(make(self, f"v{number}"))

    def now(self) -> float:
        return self.clock.monotonic()

    def late(self) -> float:
        """Return how long an operation takes."""
        if self.rnd.random() < self.troubles.slow:
            return self.rnd.uniform(0, 1.5) * self.ttl
        return self.rnd.uniform(0.0001, 0.005) * self.ttl

    def join(self) -> None:
        self.names += 1
        self.candidates.append(Candidate(self, f"c{self.names}"))

    def tell(self, observation: Observation) -> None:
        for candidate in self.candidates:
            candidate.see(observation)

    def leaders(self) -> list[Any]:
        return [one for one in self.candidates if one.alive and one.began is not None]

    def run(self, terms: float) -> None:
        """Let that many TTLs pass, with failures."""
        for _ in range(int(terms * 20)):
            self.clock.advance(self.ttl / 20)
            self.store.expire()
            self.trouble()

    def calm(self) -> None:
        """End all failures."""
        self.troubles = Troubles()
        for candidate in self.candidates:
            if candidate.cut:
                candidate.heal()
            if candidate.paused:
                candidate.resume()

    def close(self) -> None:
        for candidate in self.candidates:
            if candidate.alive:
                candidate.crash()

    def trouble(self) -> None:
        troubles, rnd = self.troubles, self.rnd
        if rnd.random() < troubles.steps:
            self.store.offset += rnd.choice((-1, 1)) * rnd.uniform(0, 3) * self.ttl
        if rnd.random() < troubles.meddling and self.store.held is not None:
            self.store.write("ended", self.store.held.revision, "")
        for candidate in [one for one in self.candidates if one.alive]:
            self._befall(candidate)

    def _befall(self, candidate: Any) -> None:
        troubles, rnd = self.troubles, self.rnd
        length = rnd.uniform(0, 2) * self.ttl
        if rnd.random() < troubles.pauses and not candidate.paused:
            candidate.pause()
            self.clock.call_later(length, candidate.resume)
        if rnd.random() < troubles.cuts and not candidate.cut:
            candidate.cut = True
            self.clock.call_later(length, candidate.heal)
        if rnd.random() < troubles.resigning and not candidate.paused:
            candidate.resign()
        if rnd.random() < troubles.crashes:
            candidate.crash()
            self.clock.call_later(length, self.join)

    def contradictions(self) -> list[str]:
        """Return where two led at once, or tokens did not grow."""
        found = []
        terms = sorted(self.terms, key=lambda term: (term.begin, term.token))
        for earlier, later in pairwise(terms):
            if later.begin < earlier.end:
                found.append(f"{later} began before {earlier} ended")
            if later.token <= earlier.token:
                found.append(f"{later} has no larger token than {earlier}")
        return found
