"""How many jobs of a worker may end before they are settled, and when they are."""

from typing import Any

import pytest

from pelton.queue.run.leased_jobs import LeasedJob
from pelton.queue.run.slots import EndedAttempts

ONE: Any = "an ended attempt"


@pytest.mark.parametrize(("exclusive", "share"), [(False, 7), (True, 5)])
def test_an_ended_job_gives_its_slot_to_another_up_to_a_number(exclusive: bool, share: int) -> None:
    unsettled: EndedAttempts[LeasedJob] = EndedAttempts(4, together=True, exclusive=exclusive)
    started = 0
    while unsettled.has_room(started):
        assert unsettled.free(started) > 0
        started += 1
        unsettled.add(ONE, now=1.0)
    assert started == 4 + share * 4
    taken = unsettled.begin()
    assert len(taken) == started
    assert unsettled.free(started) == 0
    unsettled.note_settled(6)
    assert unsettled.free(started - 6) == 4
    assert unsettled.active(started - 6) == 0


def test_running_jobs_never_exceed_the_slots() -> None:
    unsettled: EndedAttempts[LeasedJob] = EndedAttempts(4, together=True, exclusive=False)
    for _ in range(3):
        unsettled.add(ONE, now=1.0)
    # Three have ended, so one of four still runs.
    assert unsettled.free(4) == 3
    assert unsettled.free(7) == 0
    assert (unsettled.active(4), unsettled.active(7)) == (1, 4)


@pytest.mark.parametrize(("concurrency", "together"), [(1, True), (4, False)])
def test_with_one_slot_or_on_a_cluster_a_slot_is_free_when_its_job_is_settled(concurrency: int, together: bool) -> None:
    unsettled: EndedAttempts[LeasedJob] = EndedAttempts(concurrency, together=together, exclusive=False)
    for _ in range(concurrency):
        unsettled.add(ONE, now=1.0)
    assert unsettled.free(concurrency) == 0
    assert unsettled.active(concurrency) == concurrency
    unsettled.begin()
    unsettled.note_settled(1)
    assert unsettled.free(concurrency - 1) == 1


@pytest.mark.parametrize("together", [True, False])
def test_in_a_store_file_one_settlement_follows_the_other(together: bool) -> None:
    unsettled: EndedAttempts[LeasedJob] = EndedAttempts(4, together=together, exclusive=False)
    assert not unsettled.may_settle
    unsettled.add(ONE, now=1.0)
    assert unsettled.may_settle
    unsettled.begin()
    assert not unsettled.may_settle
    unsettled.add(ONE, now=1.0)
    assert unsettled.may_settle is not together
    unsettled.end()
    assert unsettled.may_settle


def test_ended_jobs_do_not_wait_for_many_others() -> None:
    unsettled: EndedAttempts[LeasedJob] = EndedAttempts(4, together=True, exclusive=False)
    assert unsettled.due_at > 99.0
    unsettled.add(ONE, now=1.0)
    unsettled.add(ONE, now=1.009)
    assert unsettled.due_at == 1.01
    unsettled.begin()
    assert unsettled.due_at > 1.02
