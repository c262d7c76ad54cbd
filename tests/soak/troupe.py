"""The processes on a stage: started, killed, paused, resumed and asked to end; and all their reports."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Final

from tests.storage.processes import Child

_SILENT_S: Final = 1.0


@dataclass
class Actor:
    """One process, and for how many more reports of the others it stays paused."""

    role: Any
    child: Child
    sleeping: bool = False
    wake_after: int = 0


class Troupe:
    """Actors, one for each of ``roles``; ``start`` makes the process of a role. ``counts`` is added to."""

    def __init__(self, start: Callable[[Any], Child], roles: Sequence[Any], counts: Counter[str]) -> None:
        self._start = start
        self._counts = counts
        self.deaths: list[str] = []
        """What actors have died of that nobody killed."""
        self.actors: list[Actor] = []
        for role in roles:
            self.actors.append(Actor(role, start(role)))

    def hear(self, words: int) -> None:
        """Wait for reports of the actors; a paused one resumes after some of the others'."""
        while words > 0:
            pipes = {actor.child.pipe: actor for actor in self.actors if not actor.sleeping}
            ready = wait(list(pipes), _SILENT_S)
            for pipe in ready:
                self._word(pipes[pipe])  # type: ignore[index]  # what is ready is one of the pipes
            words -= len(ready) or 1
            for actor in self.actors:
                actor.wake_after -= len(ready) or 60
                if actor.wake_after <= 0:
                    self.wake(actor)

    def wake(self, actor: Actor) -> None:
        if not actor.sleeping:
            return
        actor.sleeping, actor.wake_after = False, 0
        os.kill(actor.child.process.pid or 0, signal.SIGCONT)

    def stop(self, actor: Actor, words: int) -> None:
        """Pause it, in the middle of whatever it does, until the others have made that many reports."""
        self._counts["stops"] += 1
        os.kill(actor.child.process.pid or 0, signal.SIGSTOP)
        self.asleep(actor, words)

    def asleep(self, actor: Actor, words: int) -> None:
        """Note that it is paused."""
        actor.sleeping, actor.wake_after = True, words

    def kill(self, actor: Actor) -> None:
        """Kill it, and start another one in its role."""
        self._counts["kills"] += 1
        actor.child.kill()
        self._replace(actor)

    def leave(self, actor: Actor) -> None:
        """Ask it to end cleanly."""
        # A paused one may hold the lock that the other waits for.
        for other in self.actors:
            self.wake(other)
        try:
            actor.child.say("go")
            while self._hear_of(actor) != "closed":
                pass
            actor.child.join()
        except (AssertionError, EOFError, ConnectionError) as error:
            self.deaths.append(f"a {actor.role.__name__} died: {error}")
            actor.child.kill()

    def renew(self, actor: Actor) -> None:
        """Ask it to end, and start another one in its role."""
        self._counts["departures"] += 1
        self.leave(actor)
        self._replace(actor)

    def finish(self) -> None:
        """Ask all to end."""
        for actor in self.actors:
            self.leave(actor)

    def close(self) -> None:
        """Kill all that are left."""
        for actor in self.actors:
            actor.child.kill()

    def _replace(self, actor: Actor) -> None:
        actor.child = self._start(actor.role)
        actor.sleeping, actor.wake_after = False, 0

    def _word(self, actor: Actor) -> None:
        try:
            self._hear_of(actor)
        except (AssertionError, EOFError, ConnectionError) as error:
            self.deaths.append(f"a {actor.role.__name__} died: {error}")
            actor.child.kill()
            self._replace(actor)

    def _hear_of(self, actor: Actor) -> str:
        word: str = actor.child.hear()
        if word not in _EVERYDAY:
            self._counts[word] += 1
        return word


_EVERYDAY: Final = {"open", "did", "closed"}
