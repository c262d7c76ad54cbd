"""What is wrong with a store, decided from facts: each alarm has a case in which it is there, and one in which not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import observe
from pelton.api import rfc3339
from pelton.api.times import SECOND
from pelton.observe import HealthFacts, QueueSummary, alarms_of
from pelton.observe.alarms import KINDS
from pelton.queue import WorkerInfo
from pelton.storage import LeafNote, WriterHold

NOW = 1_800_000_000 * SECOND
GB = 10**9


def ago(seconds: float) -> str:
    return rfc3339(NOW - int(seconds * SECOND))


def worker(**values: Any) -> WorkerInfo:
    return WorkerInfo(name="w1", host="h", pid=1, started_at=0, seen_at=NOW, concurrency=1, **values)


def of_store(**values: Any) -> HealthFacts:
    return HealthFacts(now=NOW, **values)


def of_hub(told: float, **values: Any) -> HealthFacts:
    return of_store(hubs=[LeafNote(url="nats://h:7", pid=7, told_ns=NOW - int(told * SECOND), **values)])


def of_queue(*, workers: int = 1, newest_dead: float = 0, longest: float = 0, **values: Any) -> HealthFacts:
    return HealthFacts(
        now=NOW,
        queues=[QueueSummary(name="garage", **values)],
        workers={"garage": [worker(running=int(longest > 0), oldest_running=longest)] * workers},
        newest={"JOBS_garage_dead": ago(newest_dead)} if newest_dead else {},
    )


@pytest.mark.parametrize(
    ("kind", "text", "wrong", "well"),
    [
        ("disk", "The disk of the store has 953.7 MiB left.", of_store(disk_free=GB - 1), of_store(disk_free=GB)),
        ("disk", "The disk of the store has 2.3 GiB left.", of_store(disk_free=5 * GB // 2, log_bytes=GB),
         of_store(disk_free=3 * GB, log_bytes=GB)),
        ("log", "The log has grown to 953.7 MiB: a process reads an old snapshot.",
         of_store(log_bytes=GB + 1), of_store(log_bytes=GB)),
        ("corrupt", "Damage was found in 1 place: run pelton verify.", of_store(damaged=1), of_store()),
        ("writer", "Process 7 has held the writer for 12 s and writes nothing: nobody else can write.",
         of_store(writer=WriterHold(7, 12.0)), of_store(writer=WriterHold(7, 9.0))),
        ("clock", "The clock went back: the newest message is of a time 3 h ahead of it.",
         of_store(newest={"a": ago(5), "b": ago(-3 * 3600)}), of_store(newest={"a": ago(5), "b": ago(-59)})),
        ("hub", "The hub nats://h:7 is away: refused (2 attempts).", of_hub(5, reason="refused", attempts=2),
         of_hub(5, connected_ns=1)),
        ("hub", "No process is the leaf node of nats://h:7: process 7 told so last 2 h ago.",
         of_hub(7200, connected_ns=1), of_hub(90_000, connected_ns=1)),
        ("unreadable", "It cannot be looked at: why", of_queue(error="why"), of_queue()),
        ("paused", "It is paused, and 34,000 jobs wait.", of_queue(paused=True, pending=34_000), of_queue(pending=1)),
        ("paused", "It is paused.", of_queue(paused=True), of_queue()),
        ("no worker", "No worker runs, and 2 jobs wait.", of_queue(workers=0, held=1, pending=1, oldest_at=ago(31)),
         of_queue(workers=0, pending=1, oldest_at=ago(29))),
        ("no progress", "No job has ended for 12 min, and 1 job waits.",
         of_queue(pending=1, oldest_at=ago(4000), last_ended_at=ago(720)),
         of_queue(pending=1, oldest_at=ago(3000), last_ended_at=ago(5))),
        ("no progress", "No job has ended for 10 min.", of_queue(running=1, oldest_at=ago(601)),
         of_queue(pending=1, oldest_at=ago(50), last_ended_at=ago(4000))),
        ("overdue", "The oldest job that is due has waited for 76 min.",
         of_queue(pending=1, oldest_at=ago(4570), last_ended_at=ago(5)),
         of_queue(pending=1, oldest_at=ago(3500), last_ended_at=ago(5))),
        ("hangs", "A job has run for 76 min.", of_queue(longest=4570), of_queue(longest=3500)),
        ("dead letters", "3 dead letters, the newest 4 min ago.", of_queue(dead_letters=3, newest_dead=240),
         of_queue(dead_letters=3, newest_dead=3601)),
        ("dead letters", "1 dead letter, the newest 0 s ago.", of_queue(dead_letters=1, newest_dead=0.5),
         of_queue(dead_letters=0, newest_dead=240)),
    ],
)  # fmt: skip
def test_each_alarm(kind: str, text: str, wrong: HealthFacts, well: HealthFacts) -> None:
    assert [(alarm.kind, alarm.text) for alarm in alarms_of(wrong)] == [(kind, text)]
    assert alarms_of(well) == []


def test_the_gravest_is_first_and_a_queue_is_named() -> None:
    facts = of_queue(paused=True, dead_letters=1, newest_dead=5, longest=4000)
    found = alarms_of(
        HealthFacts(now=NOW, queues=facts.queues, newest=facts.newest, workers=facts.workers, disk_free=0)
    )
    assert [alarm.kind for alarm in found] == ["disk", "paused", "hangs", "dead letters"]
    assert [alarm.queue for alarm in found] == ["", "garage", "garage", "garage"]
    assert set(KINDS) >= {alarm.kind for alarm in found}


async def test_the_facts_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        garage = await jet.queue("garage")

        @garage.job(max_attempts=1)
        async def repair() -> None:
            raise ValueError

        await repair.enqueue()
        await garage.work(until_empty=True, handle_signals=False)
        await garage.pause()
        streams, queues = await observe.stream_summaries(jet), await observe.queue_summaries(jet)
        facts = await observe.health_facts(jet, str(path), queues, streams)
        assert facts.disk_free is not None
        assert facts.log_bytes > 0
        # The disk of who runs this may be full.
        found = [alarm.kind for alarm in alarms_of(facts) if alarm.kind != "disk"]
        assert found == ["paused", "dead letters"]
