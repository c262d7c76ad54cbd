"""SIGKILL of some of four processes that write, while the others write on.

Each publisher is replaced by one that publishes again whatever its predecessor did not report, with the same message
ids. In the end every message is stored exactly once, at the sequence of its acknowledgement, or was worked off once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pelton
from pelton.engine.salvage import recount
from tests.crash.roles import STREAM, WORK, make_store, resender, stored, subject_of, worker
from tests.crash.test_kill import Record
from tests.storage.processes import Child

_PUBLISHERS = 4
_WORKERS = 2
_MOST_WORDS = 60


class Actor(ABC):
    """A process and its successors, which do the same."""

    def __init__(self, path: Path, random: Random) -> None:
        self._path, self._random = path, random
        self.child = self._begun()

    @abstractmethod
    def _begun(self) -> Child:
        """Start a child that goes on where the one before was killed."""

    @abstractmethod
    def _heard(self, word: Any) -> None:
        """Note a report."""

    def listen(self, words: int = 0) -> None:
        """Read what the child has reported, and wait for some more reports."""
        while self.child.pipe.poll(0.2 if words > 0 else 0):
            words -= 1
            self._hear(self.child.hear())

    def _hear(self, word: Any) -> None:
        if word not in ("open", "closed"):
            self._heard(word)

    def kill(self) -> None:
        """Kill the child somewhere in its next steps."""
        self.listen(self._random.randrange(_MOST_WORDS))
        self.child.pipe.poll(self._random.uniform(0, 0.002))
        self.end()

    def end(self) -> None:
        self.child.kill()
        for word in self.child.hear_all():
            self._hear(word)
        self._buried()

    def _buried(self) -> None:
        self.child.close()

    def replace(self) -> None:
        self.child = self._begun()


class Publishing(Actor):
    """Publishes the messages of one name, in order."""

    def __init__(self, path: Path, random: Random, who: str) -> None:
        self.who = who
        self.acked: dict[str, int] = {}
        super().__init__(path, random)

    def _begun(self, limit: int = 1 << 30) -> Child:
        return Child(resender, self._path, self.who, self._random.randrange(1 << 30), len(self.acked), limit)

    def _heard(self, word: tuple[str, str, int]) -> None:
        assert word[1] == f"{self.who}-{len(self.acked)}"
        self.acked[word[1]] = word[2]

    def finish(self) -> None:
        """Publish what the last child has not reported, and a little more."""
        self.child = self._begun(len(self.acked) + _MOST_WORDS)
        for word in self.child.hear_all():
            self._hear(word)
        self.child.join()
        self._buried()


class Working(Actor):
    """Takes from the work queue."""

    def __init__(self, path: Path, random: Random, record: Record) -> None:
        self._record = record
        self._words: list[tuple[str, int, str]] = []
        super().__init__(path, random)

    def _begun(self) -> Child:
        return Child(worker, self._path, self._random.randrange(1 << 30))

    def _heard(self, word: tuple[str, int, str]) -> None:
        self._words.append(word)

    def _buried(self) -> None:
        super()._buried()
        self._record.worker_said(self._words)
        self._words = []


@pytest.mark.parametrize("kills", [pytest.param(12, id="short"), pytest.param(100, id="long")])
async def test_what_is_published_again_after_a_kill_is_stored_once(tmp_path: Path, kills: int) -> None:
    """The kills go on until enough was done between them, which takes as long as the machine needs."""
    path = tmp_path / "a.pelton"
    await make_store(path, ack_wait=0.3)
    random, record = Random(20261122), Record()
    publishers = [Publishing(path, random, f"p{number}") for number in range(_PUBLISHERS)]
    workers = [Working(path, random, record) for _ in range(_WORKERS)]
    actors: list[Actor] = [*publishers, *workers]
    number = 0
    while number < kills or min(len(record.done), *(len(one.acked) for one in publishers)) <= kills:
        victim = random.choice(actors)
        victim.kill()
        for actor in actors:
            if actor is not victim:
                # A child whose pipe is full writes no more.
                actor.listen()
        if number % 8 == 0:
            # While the others write.
            assert recount(str(path)) == []
        victim.replace()
        number += 1
    for actor in random.sample(actors, len(actors)):
        actor.end()
    for publisher in publishers:
        publisher.finish()
    await _check(path, {name: seq for one in publishers for name, seq in one.acked.items()}, record)


async def _check(path: Path, acked: dict[str, int], record: Record) -> None:
    """Check that exactly the acknowledged messages are stored, or done."""
    assert recount(str(path)) == []
    wanted = {
        stream: {n: seq for n, seq in acked.items() if subject_of(n).startswith(stream)} for stream in (STREAM, WORK)
    }
    async with pelton.open(path) as jet:
        assert await stored(jet, STREAM) == wanted[STREAM]
        waiting = await stored(jet, WORK)
    assert waiting.items() <= wanted[WORK].items()
    assert not waiting.keys() & record.done, "a message that was done is still there"
    assert wanted[WORK].keys() - waiting.keys() <= record.done | record.maybe_done
