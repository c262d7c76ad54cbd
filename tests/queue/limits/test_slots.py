"""The record of a limit, against what it promises: pure."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton import ConfigError
from pelton.queue import JobLimit, Rate
from pelton.queue.model.limits import (
    EMPTY,
    SlotDraft,
    SlotRecord,
    WorkerSlots,
    beaten,
    decode,
    encode,
    job_limit,
    places_of,
)
from pelton.queue.run.admission import SlotBook
from pelton.runtime import ProcessIdentity, ProcessWatch

_START = 1_700_000_000 * 10**9
_S = 10**9


def draft(
    limit: JobLimit, record: SlotRecord, worker: str = "a", mine: tuple[int, ...] = (), now: int = 0
) -> SlotDraft:
    return SlotDraft(limit, record, worker, mine, (), _START + now)


def starts(limit: JobLimit, times: list[int], record: SlotRecord = EMPTY) -> list[int]:
    """Return at which times a start is allowed, of those at which one is wanted."""
    found = list[int]()
    for job, at in enumerate(times):
        one = draft(limit, record, now=at)
        if not one.wait(job):
            one.start(job)
            record = decode(encode(one.record()))
            found.append(at)
    return found


@given(
    rate=st.builds(Rate, st.integers(1, 100), st.sampled_from([0.5, 1.0, 60.0]), st.integers(1, 20)),
    gaps=st.lists(st.integers(0, 2 * _S), min_size=1, max_size=60),
)
def test_starts_keep_to_the_rate_in_every_window(rate: Rate, gaps: list[int]) -> None:
    times = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    found = starts(JobLimit(rate=rate), times)
    assert found[:1] == times[:1]
    for first in range(len(found)):
        for last in range(first, len(found)):
            assert last - first + 1 <= (found[last] - found[first]) / rate.interval_ns + rate.burst + 1e-9


@given(rate=st.builds(Rate, st.integers(1, 100), st.just(1.0), st.integers(1, 20)), waits=st.integers(1, 40))
def test_who_waits_as_long_as_told_may_start(rate: Rate, waits: int) -> None:
    limit, record, now = JobLimit(rate=rate), EMPTY, 0
    for job in range(waits):
        one = draft(limit, record, now=now)
        assert (one.wait(job) == 0) == bool(one.room)
        now += round(one.wait(job) * _S)
        one = draft(limit, record, now=now)
        assert one.wait(job) == 0
        one.start(job)
        record = one.record()
    assert now <= max(waits - rate.burst, 0) * rate.interval_ns + waits


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 8)), max_size=60),
    most=st.integers(1, 3),
)
def test_slots_are_never_more_than_the_limit(steps: list[tuple[str, bool, int]], most: int) -> None:
    limit, record = JobLimit(concurrency=most), EMPTY
    held: dict[str, dict[int, None]] = {"a": {}, "b": {}, "c": {}}
    for worker, comes, job in steps:
        mine = held[worker]
        one = SlotDraft(limit, record, worker, mine, (), _START)
        if comes and not one.wait(job):
            one.start(job)
            for others in held.values():
                # It was taken anew: who had it before has lost it.
                others.pop(job, None)
            mine[job] = None
        elif not comes and job in mine:
            del mine[job]
            one.leave(job)
        record = decode(encode(one.record()))
        assert {name: set(slots.jobs) for name, slots in record.workers.items()} == {
            name: set(jobs) for name, jobs in held.items() if jobs
        }
        assert sum(map(len, held.values())) <= most


def test_a_worker_that_changes_nothing_for_a_lease_is_dead_as_others_see_it() -> None:
    limit = JobLimit(concurrency=1)
    record = SlotRecord({"dead": WorkerSlots(7, (1,))})
    book = SlotBook("a", 10.0, ProcessWatch())
    assert book.saw("all", 1, record, 100.0)
    assert not book.saw("all", 1, record, 105.0), "no news"
    assert book.next_death("all", 104.0) == 6.0
    assert book.draft("all", limit, 109.9, _START).wait(2) > 0
    # It is seen anew, unchanged: that is no sign of life.
    book.mark_outdated("all")
    assert book.saw("all", 1, record, 109.9)
    assert book.draft("all", limit, 110.0, _START).wait(2) == 0
    assert book.saw("all", 2, beaten(record, "dead", _START), 110.0)
    assert book.draft("all", limit, 119.9, _START).wait(2) > 0


def test_a_worker_whose_process_has_ended_is_dead_at_once() -> None:
    ended: set[ProcessIdentity] = set()
    processes = ProcessWatch(ended.__contains__)
    if processes.own is None:
        pytest.skip("this system does not tell when its processes started")
    near = processes.own._replace(pid=4711)
    limit, lease = JobLimit(concurrency=3), 60.0

    def waits(now: float) -> bool:
        return book.draft("all", limit, now, _START).wait(9) > 0

    book = SlotBook("a", lease, processes)
    # One here, one elsewhere, and one of an older version.
    workers = {
        "near": WorkerSlots(1, (1,), near),
        "far": WorkerSlots(1, (2,), near._replace(host="another")),
        "old": WorkerSlots(1, (3,)),
    }
    record = decode(encode(SlotRecord(workers)))
    assert record.workers == workers
    assert book.saw("all", 1, record, 100.0)
    assert waits(100.0)
    assert book.next_death("all", 100.0) <= 0.3, "it is looked at again"
    ended |= {slots.process for slots in workers.values() if slots.process is not None}
    assert waits(100.1), "not at each draft"
    assert waits(100.4), "its children have a moment to end"
    assert not waits(100.7)
    draft = book.draft("all", limit, 100.7, _START)
    draft.start(9)
    assert draft.record().workers == {
        "far": workers["far"],
        "old": workers["old"],
        "a": WorkerSlots(_START, (9,), processes.own),
    }
    assert beaten(draft.record(), "a", _START).workers["a"].process == processes.own
    # What is left is decided by its lease.
    assert book.saw("all", 2, draft.record(), 101.0)
    assert book.next_death("all", 101.0) == 59.0


def test_a_record_of_an_older_version_names_no_process() -> None:
    record = decode(msgspec.msgpack.encode({"workers": {"w": [7, [1, 2]]}}))
    assert record == SlotRecord({"w": WorkerSlots(7, (1, 2), None)})


def test_what_a_watch_brings_late_is_ignored() -> None:
    book = SlotBook("a", 10.0, ProcessWatch())
    assert book.saw("all", 5, EMPTY, 0.0)
    book.mark_outdated("all")
    assert not book.saw("all", 4, EMPTY, 0.0)
    assert not book.knows("all")
    assert book.saw("all", 0, EMPTY, 0.0), "the store has removed it"
    assert book.knows("all")


def test_a_part_that_comes_back_is_another_one() -> None:
    one = SlotDraft(JobLimit(concurrency=1), EMPTY, "a", (), (), _START)
    one.start(1)
    again = SlotDraft(JobLimit(concurrency=1), EMPTY, "a", (), (), _START + 1)
    again.start(1)
    assert one.record().workers["a"].beat != again.record().workers["a"].beat


def test_another_rate_and_another_time_hold_nobody_back_for_long() -> None:
    slow, fast = JobLimit(rate=Rate(1, 3600.0)), JobLimit(rate=Rate(10, 1.0))
    one = draft(slow, EMPTY)
    one.start(1)
    assert draft(slow, one.record(), now=60 * _S).wait(2) == 3540
    assert draft(fast, one.record(), now=60 * _S).wait(2) == 0
    # The clock is set back by a day.
    assert draft(slow, one.record(), now=-86_400 * _S).wait(2) == 0


def test_a_record_without_holders_is_removed_when_it_says_nothing() -> None:
    assert SlotRecord({"a": WorkerSlots(1, (1,))}).ttl(_START) == 0
    assert SlotRecord(ahead=_START + 100 * _S).ttl(_START) == 160
    assert EMPTY.ttl(_START) == 60


def test_a_job_is_under_the_limits_of_its_name_and_its_key() -> None:
    limits = [
        JobLimit(concurrency=1),
        JobLimit(job="mail", concurrency=1),
        JobLimit(per_key=True, concurrency=1),
        JobLimit(job="mail.all", per_key=True, concurrency=1),
    ]
    assert list(places_of(limits, "mail", "")) == ["all", "job.mail"]
    assert list(places_of(limits, "mail", "eu.1 x")) == ["all", "job.mail", "key.eu%2E1%20x"]
    assert list(places_of(limits, "mail.all", "k")) == ["all", "key.k", "job.mail%2Eall.key.k"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "give concurrency, rate, or both"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"rate": 3}, "give a pelton.Rate"),
        ({"rate": Rate(0)}, "starts of the rate is 0"),
        ({"rate": Rate(1, 0)}, "per of the rate is 0 s"),
        ({"rate": Rate(1, 1.0, 0)}, "burst of the rate is 0"),
        ({"concurrency": 1, "job": ""}, "job is ''"),
        ({"concurrency": 1, "per_key": 2}, "per_key is 2"),
    ],
)
def test_limits_are_checked(given: dict[str, object], what: str) -> None:
    arguments = {"job": None, "per_key": False, "concurrency": None, "rate": None, **given}
    with pytest.raises(ConfigError, match=what):
        job_limit("garage", **arguments)  # type: ignore[arg-type]
