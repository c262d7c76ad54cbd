"""What a worker concludes from its watches: which keys it may try, and when."""

from collections import Counter
from math import inf
from random import Random

from pelton.queue import key_table as module
from pelton.queue.key_table import Chance, KeyRecord, KeyTable

FREE = KeyRecord(state="free", done=5)
HELD = KeyRecord(state="held", done=5, worker="other")
LEASE_S = 10.0


def table() -> KeyTable:
    return KeyTable(LEASE_S, Random(1))


def test_a_job_of_a_key_nobody_holds_is_a_chance_once() -> None:
    keys = table()
    assert keys.saw_job("k", 3, 0.0)
    assert keys.take(9, 0.0) == [Chance("k", 0, None)]
    assert keys.take(9, 0.0) == []
    keys.release("k", 1.0)
    assert keys.take(9, 1.0) == [Chance("k", 0, None)]


def test_jobs_that_have_ended_are_no_chance() -> None:
    keys = table()
    keys.saw_record("k", 8, FREE, 0.0)
    assert not keys.saw_job("k", 5, 0.0)
    assert keys.saw_job("k", 6, 0.0)
    assert keys.take(9, 0.0) == [Chance("k", 8, FREE)]


def test_a_record_that_stands_still_for_a_lease_may_be_taken_over_and_renewing_it_puts_that_off() -> None:
    keys = table()
    keys.saw_job("k", 6, 0.0)
    keys.saw_record("k", 8, HELD, 0.0, age=1000.0)  # its age is by another's clock: it counts for nothing
    assert keys.next_due() == LEASE_S
    assert keys.take(9, LEASE_S - 0.1) == []
    keys.saw_record("k", 9, HELD, LEASE_S - 0.1)
    assert keys.take(9, LEASE_S) == []
    assert keys.take(9, 2 * LEASE_S) == [Chance("k", 9, HELD)]


def test_hearing_of_the_same_record_again_puts_nothing_off() -> None:
    keys = table()
    keys.saw_record("k", 8, HELD, 0.0)
    keys.saw_record("k", 8, HELD, 9.0)
    keys.saw_record("k", 7, FREE, 9.0)
    assert keys.take(9, LEASE_S) == [Chance("k", 8, HELD)]


def test_what_somebody_settled_and_did_not_carry_out_is_a_chance_soon() -> None:
    keys = table()
    keys.saw_record("k", 8, KeyRecord(state="settled", job=6), 0.0)
    assert keys.take(9, 4.9) == []
    assert [chance.key for chance in keys.take(9, 5.0)] == ["k"]


def test_a_retry_waits_for_what_is_left_of_its_delay() -> None:
    keys = table()
    keys.saw_record("k", 8, KeyRecord(state="waiting", job=6, delay_ns=7_000_000_000), 0.0, age=4.0)
    keys.saw_record("l", 9, KeyRecord(state="waiting", job=7, delay_ns=7_000_000_000), 0.0, age=99.0)
    assert [chance.key for chance in keys.take(9, 0.0)] == ["l"]
    assert [chance.key for chance in keys.take(9, 3.0)] == ["k"]


def test_what_is_heard_while_we_are_at_a_key_counts_afterwards() -> None:
    keys = table()
    keys.saw_job("k", 6, 0.0)
    keys.take(1, 0.0)
    keys.saw_record("k", 8, HELD, 0.0)
    keys.saw_job("k", 7, 1.0)
    keys.saw_record("k", 9, KeyRecord(state="free", done=6), 1.0)
    assert keys.take(1, 1.0) == []
    keys.release("k", 1.0)
    assert keys.take(1, 1.0) == [Chance("k", 9, KeyRecord(state="free", done=6))]


def test_a_key_somebody_else_changed_is_left_alone_until_that_is_known() -> None:
    keys = table()
    keys.saw_job("k", 6, 0.0)
    keys.take(1, 0.0)
    keys.release("k", 0.0, 0.25, changed=8)
    assert keys.take(1, 0.1) == []
    assert keys.saw_record("k", 8, FREE, 0.1)
    assert keys.take(1, 0.1) != []
    keys.release("k", 0.1, 0.25, changed=8)
    assert keys.take(1, 0.1) != []


def test_a_key_without_jobs_is_none_until_one_comes() -> None:
    keys = table()
    keys.saw_job("k", 6, 0.0)
    keys.take(1, 0.0)
    keys.forget_jobs("k", 6)
    keys.saw_record("k", 8, FREE, 0.0)
    keys.release("k", 0.0)
    assert (keys.take(1, 0.0), keys.next_due()) == ([], inf)
    keys.saw_job("k", 7, 0.0)
    keys.take(1, 0.0)
    keys.saw_job("k", 8, 0.0)
    keys.forget_jobs("k", 7)  # it was true of 7, and 8 has come
    keys.release("k", 0.0)
    assert keys.take(1, 0.0) != []


def test_a_record_that_was_removed_is_as_none() -> None:
    keys = table()
    keys.saw_record("k", 8, FREE, 0.0)
    keys.saw_job("k", 9, 0.0)
    keys.forget_record("k", 0.0)
    assert keys.take(1, 0.0) == [Chance("k", 0, None)]


def test_keys_with_nothing_to_do_are_forgotten_in_the_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "_IDLE_KEYS", 2)
    keys = table()
    for number, key in enumerate("abc"):
        keys.saw_record(key, number + 1, FREE, 0.0)
    keys.saw_job("a", 9, 0.0)
    keys.saw_job("b", 9, 0.0)
    assert sorted(keys.take(9, 0.0)) == [Chance("a", 0, None), Chance("b", 2, FREE)]


def test_no_more_than_asked_for_and_the_oldest_before_others() -> None:
    keys = table()
    for number in range(500):
        keys.saw_job(f"k{number}", number + 1, 0.0)
    found = [chance.key for chance in keys.take(3, 0.0)]
    assert len(set(found)) == 3
    assert all(int(key[1:]) < 64 for key in found)
    assert len(keys.take(1000, 0.0)) == 497


def test_workers_that_soon_end_serve_keys_of_every_priority() -> None:
    chance, taken = Random(1), Counter[str]()
    for _ in range(240):
        keys = KeyTable(LEASE_S, chance)
        for priority in range(4):
            keys.saw_job(f"k{priority}", priority + 1, 0.0, priority)
        keys.turns.draw()
        taken.update(one.key for one in keys.take(1, 0.0))
    assert all(taken[f"k{priority}"] >= 5 for priority in range(4))
    assert taken["k3"] >= 180
