"""The claim to the next turn of writing, as several connections see it."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from pelton.storage.committer import LAPSE_S, SIZE, WriterPriority, claims_in_memory


def views(count: int, memory: bytearray | None = None) -> list[WriterPriority]:
    memory = bytearray(SIZE + 8) if memory is None else memory
    return [WriterPriority(memory, 8) for _ in range(count)]


def test_others_stand_back_for_a_claim_until_it_is_withdrawn() -> None:
    one, other = views(2)
    assert not one.is_anothers(10)
    assert one.claim(9, 10)
    assert other.is_anothers(10)
    assert not one.is_anothers(10)
    other.withdraw()
    assert other.is_anothers(10), "only its owner withdraws a claim"
    one.withdraw()
    assert not other.is_anothers(10)


def test_the_longest_wait_wins_whoever_claims_first() -> None:
    young, old = views(2)
    assert young.claim(9.5, 10)
    assert old.claim(9, 10)
    assert not young.claim(9.5, 10)
    assert young.is_anothers(10)
    old.withdraw()
    assert young.claim(9.5, 10)


def test_a_claim_that_is_not_repeated_lapses() -> None:
    stopped, one, other = views(3)
    assert stopped.claim(1, 10)
    assert not one.claim(9, 10 + LAPSE_S * 0.9)
    assert not one.is_anothers(10 + LAPSE_S * 1.1)
    assert one.claim(9, 10 + LAPSE_S * 1.1)
    assert other.is_anothers(10 + LAPSE_S * 1.1)
    assert stopped.claim(1, 10 + LAPSE_S * 1.2), "it still waits the longest"


def test_a_claim_by_another_clock_is_ignored() -> None:
    elsewhere, here = views(2)
    assert elsewhere.claim(5000, 5001)
    assert not here.is_anothers(10)
    assert here.claim(9, 10)


@given(st.binary(min_size=SIZE + 8, max_size=SIZE + 8), st.floats(0, 1e9))
def test_whatever_is_found_there_holds_up_nobody_for_longer_than_a_lapse(found: bytes, now: float) -> None:
    [one] = views(1, bytearray(found))
    one.is_anothers(now)
    one.claim(now - 1, now)
    later = now + 3 * LAPSE_S
    assert not one.is_anothers(later)
    assert one.claim(now - 1, later)
    one.withdraw()


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), max_size=60))
def test_claimants_are_served_in_the_order_of_their_waits(looks: list[tuple[int, float]]) -> None:
    waiting, now, since = views(5), 100.0, [99.0 - n for n in range(5)]
    for number, passed in looks:
        now += passed * LAPSE_S / 10
        if waiting[number].claim(since[number], now):
            assert not any(waiting[elder].claim(since[elder], now) and elder < number for elder in range(number))
        # All others repeat their claims, as those do that run.
        for each, view in enumerate(waiting):
            view.claim(since[each], now)
    served = list[int]()
    while len(served) < 5:
        [turn] = [n for n in range(5) if n not in served and waiting[n].claim(since[n], now)][-1:]
        served.append(turn)
        waiting[turn].withdraw()
    assert served == [4, 3, 2, 1, 0]


def test_connections_of_a_memory_store_share_their_claim_while_there_are_any() -> None:
    one, other = (WriterPriority(claims_in_memory("m"), 0) for _ in range(2))
    apart = WriterPriority(claims_in_memory("n"), 0)
    assert one.claim(9, 10)
    assert other.is_anothers(10)
    assert not apart.is_anothers(10)
    del one, other
    gc.collect()
    assert not WriterPriority(claims_in_memory("m"), 0).is_anothers(10)
