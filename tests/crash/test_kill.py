"""SIGKILL at random points, many times: everything acknowledged is stored, once, and every checksum matches.

Each round starts publishers and workers on one store, kills each at a point drawn from a seeded generator
(after a number of its reports, and up to two milliseconds into its next step), and then checks the whole
store. Rounds share the store: it survives all the crashes.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.engine.salvage import recount
from tests.crash.roles import STREAM, WORK, make_store, name_of, publisher, stored, worker
from tests.storage.processes import Child

_PUBLISHERS = 2
_WORKERS = 2
_ACK_WAIT_S = 0.3
_IDLE_S = 0.5


class Record:
    """What the children reported as done, over all rounds."""

    def __init__(self) -> None:
        self.published: dict[str, dict[str, int]] = {STREAM: {}, WORK: {}}
        self.got: dict[str, int] = {}
        self.done: set[str] = set()
        self.maybe_done: set[str] = set()

    @property
    def least(self) -> int:
        """How much of that is reported of which there is least."""
        return min(len(self.published[STREAM]), len(self.published[WORK]), len(self.done))

    def publisher_said(self, words: list[tuple[str, str, int]]) -> None:
        for subject, name, seq in words:
            self.published[subject.partition(".")[0]][name] = seq

    def worker_said(self, words: list[tuple[str, int, str]]) -> None:
        """Only its last ack can have taken effect without a report."""
        taken: list[str] = []
        for word, seq, name in words:
            if word == "got":
                assert self.got.setdefault(name, seq) == seq
                taken.append(name)
            else:
                taken.remove(name)
                if word == "done":
                    assert name not in self.done, f"{name} was done twice"
                    self.done.add(name)
        self.maybe_done.update(taken[:1])


def killed(child: Child, random: Random, most_words: int) -> list[object]:
    """Kill a child at a random point of its life and return all its reports."""
    words = [child.hear()]
    for _ in range(random.randrange(most_words)):
        # A worker may have nothing to do once the publishers are dead: not even what is delivered again.
        if not child.pipe.poll(_IDLE_S):
            break
        words.append(child.hear())
    child.pipe.poll(random.uniform(0, 0.002))
    child.kill()
    words += child.hear_all()
    return [word for word in words if word != "open"]


async def killing(path: Path, random: Random, record: Record, number: int) -> int:
    """Start publishers and workers on a store, kill all of them, and check it; return how many were killed."""
    with ExitStack() as stack:
        publishers = [
            stack.enter_context(Child(publisher, path, f"r{number}p{n}", random.randrange(1 << 30)))
            for n in range(_PUBLISHERS)
        ]
        workers = [stack.enter_context(Child(worker, path, random.randrange(1 << 30))) for _ in range(_WORKERS)]
        doomed = [(child, record.publisher_said, 60) for child in publishers]
        doomed += [(child, record.worker_said, 40) for child in workers]
        random.shuffle(doomed)
        for child, listen, most_words in doomed:
            listen(killed(child, random, most_words))
    await check(path, record)
    return len(doomed)


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short"), pytest.param(60, id="long")])
async def test_acknowledged_work_survives_kills(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "a.pelton"
    await make_store(path, ack_wait=_ACK_WAIT_S)
    random, record = Random(20250711), Record()
    number = 0
    while number < rounds or record.least <= 8 * rounds:
        await killing(path, random, record, number)
        number += 1
    await drain(path, record)


async def check(path: Path, record: Record) -> None:
    assert recount(str(path)) == []
    async with pelton.open(path) as jet:
        kept = await stored(jet, STREAM)
        for name, seq in record.published[STREAM].items():
            assert kept.get(name) == seq, f"{name} was acknowledged as {seq} and lies at {kept.get(name)}"
        waiting = await stored(jet, WORK)
        for name, seq in record.published[WORK].items():
            gone = name in record.done or name in record.maybe_done
            assert gone or waiting.get(name) == seq, f"{name} was acknowledged as {seq} and is lost"
        assert not record.done & waiting.keys(), "a message that was done is still there"


async def drain(path: Path, record: Record) -> None:
    """Process what is left: each message is delivered once more, complete, and none that was done."""
    async with pelton.open(path) as jet:
        left = await stored(jet, WORK)
        consumer = await (await jet.stream(WORK)).consumer("worker")
        drained: list[str] = []
        while len(drained) < len(left):
            messages = await consumer.fetch(500, timeout=10)
            assert messages, f"{len(left) - len(drained)} messages never came again"
            drained += [name_of(message.data) for message in messages]
            await consumer.ack(messages)
        assert sorted(drained) == sorted(left)
        assert not set(drained) & record.done
    assert recount(str(path)) == []
