"""A candidate of nats-kv-leader-elect in the simulated election: what that library does, with its timing.

It tries at fixed intervals of 75 % of the TTL: as a candidate to create the key, as a leader to update it from its last
revision; a failure of that, or no reply within its client's 5 s, ends its lead. It announces a win one interval later.
It never watches the key, and does not release it when it ends.
"""

from __future__ import annotations

from collections.abc import Callable

from pelton.locks.campaign import Observation
from tests.locks.election_simulation import Term, Village

INTERVAL = 0.75
PATIENCE_S = 5.0
GRACE_S = 0.05


class Gopher:
    """One of them, in an election without failures except lost, late and cut connections, and crashes."""

    def __init__(self, election_simulation: Village, name: str) -> None:
        self.election_simulation = election_simulation
        self.name = name
        self.rate = 1 + election_simulation.rnd.uniform(
            -election_simulation.troubles.drift, election_simulation.troubles.drift
        )
        self.alive = True
        self.paused = False
        self.cut = False
        self.began: float | None = None
        self.token = 0
        self._last = 0
        self._holds = False
        self._tries = 0
        self._after(election_simulation.rnd.uniform(0, INTERVAL) * election_simulation.ttl, self._tick)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self.election_simulation.clock.call_later(seconds / self.rate, lambda: what() if self.alive else None)

    def _tick(self) -> None:
        self._after(INTERVAL * self.election_simulation.ttl, self._tick)
        self._tries += 1
        tried = self._tries
        held = self._holds

        def done(revision: int | None) -> None:
            if self._tries == tried:
                self._tries += 1
                (self._renewed if held else self._created)(revision)

        if not self._lost():
            self.election_simulation.clock.call_later(self.election_simulation.late(), lambda: self._arrive(held, done))
        self._after(PATIENCE_S, lambda: done(None))

    def _lost(self) -> bool:
        return self.cut or self.election_simulation.rnd.random() < self.election_simulation.troubles.lost

    def _arrive(self, held: bool, done: Callable[[int | None], None]) -> None:
        store = self.election_simulation.store
        observation = store.observation()
        expected = self._last if held else (0 if observation.kind in ("put", "absent") else observation.revision)
        revision = store.write("put", expected, "")
        if not self._lost():
            self.election_simulation.clock.call_later(
                self.election_simulation.late(), lambda: done(revision) if self.alive else None
            )

    def _created(self, revision: int | None) -> None:
        if revision is None:
            return
        self._holds, self._last = True, revision
        token = self.token = revision

        def tell() -> None:
            if self._holds and self.token == token:
                self.began = self.election_simulation.now()

        self._after(INTERVAL * self.election_simulation.ttl + GRACE_S, tell)

    def _renewed(self, revision: int | None) -> None:
        if revision is not None:
            self._last = revision
            return
        self._holds = False
        self._end()

    def _end(self) -> None:
        if self.began is not None:
            self.election_simulation.terms.append(
                Term(self.name, self.token, self.began, self.election_simulation.now())
            )
            self.began = None

    # --- what the village does to it

    def see(self, observation: Observation) -> None:
        """Do nothing: it does not watch."""

    def heal(self) -> None:
        self.cut = False

    def crash(self) -> None:
        self._end()
        self.alive = False

    def pause(self) -> None:
        raise AssertionError("it says that it leads when it wakes up: leave it alone")

    def resign(self) -> None:
        """Do nothing: it does not step down."""
