"""How long a connection pauses between its tries for the write lock."""

from itertools import pairwise

from pelton.storage.committer import FIRST_PAUSE_S, LONGEST_PAUSE_S, PRIORITY_AFTER_S, WriterWait


def test_pauses_grow_until_the_wait_has_priority() -> None:
    wait, now, pauses = WriterWait(30), 100.0, list[float]()
    while not wait.has_priority(now):
        pauses.append(wait.note_miss(now, is_next=True))
        now += pauses[-1]
    assert pauses[0] == FIRST_PAUSE_S
    assert all(later in (2 * pause, LONGEST_PAUSE_S) for pause, later in pairwise(pauses))
    assert now - 100 >= PRIORITY_AFTER_S
    assert [wait.note_miss(now + n, is_next=True) for n in range(3)] == [FIRST_PAUSE_S] * 3


def test_those_that_wait_behind_another_look_now_and_then() -> None:
    wait = WriterWait(30)
    wait.note_miss(10, is_next=False)
    assert wait.note_miss(11, is_next=False) == LONGEST_PAUSE_S
    assert wait.note_miss(11, is_next=True) == FIRST_PAUSE_S


def test_many_early_tries_never_pause_for_longer_than_the_longest_pause() -> None:
    # Commits of other processes end pauses early.
    wait = WriterWait(30)
    assert max(wait.note_miss(n * PRIORITY_AFTER_S / 100, is_next=True) for n in range(99)) == LONGEST_PAUSE_S


def test_a_wait_is_over_after_its_patience_and_begins_anew_when_it_has_ended() -> None:
    wait = WriterWait(0.5)
    assert not wait.is_over(1000)
    wait.note_miss(10, is_next=True)
    assert wait.since == 10
    assert not wait.is_over(10.5)
    assert wait.is_over(10.6)
    wait.note_miss(10.2, is_next=True)
    assert wait.since == 10
    wait.end()
    assert not wait.is_over(99)
    assert not wait.has_priority(99)
    assert wait.note_miss(20, is_next=True) == FIRST_PAUSE_S
