"""The history checker: accepts valid histories, and detects forged ones."""

import random

import pytest

from tests.kit.judge.history import JobEvent, check_history


def enqueued(job: str, at: int, key: str = "k") -> JobEvent:
    return JobEvent(kind="enqueued", key=key, job=job, at=at)


def attempt(job: str, token: int, start: int, end: int, key: str = "k", number: int = 1) -> list[JobEvent]:
    """A complete attempt that takes effect."""
    facts = {"key": key, "job": job, "worker": f"w{token}", "token": token, "attempt": number}
    return [
        JobEvent(kind="start", at=start, **facts),
        JobEvent(kind="finished", at=end - 1, **facts),
        JobEvent(kind="end", at=end, **facts),
    ]


GOOD = [
    *(enqueued("1", 1), enqueued("2", 2), enqueued("3", 3, key="other")),
    *attempt("1", 10, 10, 20)[::2],  # it failed: no effect
    *attempt("1", 11, 30, 40, number=2),
    *attempt("2", 12, 41, 50)[:1],  # killed
    *attempt("2", 13, 60, 70, number=2),
    *attempt("3", 5, 15, 65, key="other"),
]


def rules(events: list[JobEvent], **options: object) -> set[str]:
    return {found.rule for found in check_history(events, max_attempts=3, **options)}  # type: ignore[arg-type]


def test_a_good_history_has_no_contradiction_in_whatever_order_it_is_told() -> None:
    events = list(GOOD)
    random.Random(1).shuffle(events)
    assert check_history(events, max_attempts=3) == []


def test_an_empty_history_is_good() -> None:
    assert check_history([], max_attempts=1) == []


def test_a_lost_job_is_found() -> None:
    assert rules([*GOOD, enqueued("4", 80)]) == {"lost"}


def test_an_effect_that_nobody_asked_for_is_found() -> None:
    assert rules([*GOOD, *attempt("9", 30, 90, 99)]) == {"once", "order"}


def test_a_doubled_effect_is_found() -> None:
    assert "once" in rules([*GOOD, *attempt("2", 14, 80, 90, number=3)])


def test_an_effect_without_a_start_is_found() -> None:
    assert rules([enqueued("1", 1), attempt("1", 10, 10, 20)[1]]) == {"once"}


@pytest.mark.parametrize("end", [35, 65])
def test_two_holders_of_a_key_are_found(end: int) -> None:
    first, second = attempt("1", 10, 10, end), attempt("1", 11, 30, 60, number=2)
    history = [enqueued("1", 1), first[0], first[2], *second]
    assert rules(history) == {"exclusive"}


def test_a_holder_that_was_told_before_the_next_started_is_excused() -> None:
    first, second = attempt("1", 10, 10, 45), attempt("1", 11, 30, 60, number=2)
    told = JobEvent(kind="lost", key="k", job="1", at=29, worker="w10", token=10, attempt=1)
    history = [enqueued("1", 1), first[0], first[2], *second]
    assert rules([*history, told]) == set()
    late = JobEvent(kind="lost", key="k", job="1", at=31, worker="w10", token=10, attempt=1)
    assert rules([*history, late]) == {"exclusive"}
    assert rules([*history, late], paused={"w10"}) == set()


def test_the_effect_of_a_replaced_attempt_is_found_even_of_a_paused_worker() -> None:
    first, second = attempt("1", 10, 10, 45), attempt("1", 11, 30, 60, number=2)
    history = [enqueued("1", 1), *first, second[0], second[2]]
    assert "exclusive" in rules(history, paused={"w10"})


def test_a_paused_worker_may_start_what_was_replaced_but_it_takes_no_effect() -> None:
    second, late = attempt("1", 11, 30, 60, number=2), attempt("1", 10, 70, 80)
    history = [enqueued("1", 1), *second, late[0], late[2]]
    assert rules(history, paused={"w10"}) == set()
    assert "token" in rules(history)
    assert "exclusive" in rules([*history, late[1]], paused={"w10"})


def test_a_key_out_of_order_is_found() -> None:
    history = [enqueued("1", 1), enqueued("2", 2), *attempt("2", 10, 10, 20), *attempt("1", 11, 30, 40)]
    assert rules(history) == {"order"}


def test_a_start_before_the_predecessor_took_effect_is_found() -> None:
    history = [enqueued("1", 1), enqueued("2", 2), *attempt("1", 10, 10, 20), *attempt("2", 11, 15, 40)]
    assert rules(history) == {"order", "exclusive"}


def test_a_start_after_the_effect_is_found() -> None:
    history = [enqueued("1", 1), *attempt("1", 10, 10, 20), attempt("1", 11, 30, 40, number=2)[0]]
    assert rules(history) == {"order"}


def test_tokens_that_do_not_grow_are_found() -> None:
    history = [enqueued("1", 1), attempt("1", 10, 10, 20)[0], *attempt("1", 9, 30, 40, number=2)]
    assert rules(history) == {"token"}


@pytest.mark.parametrize(("first", "second"), [(1, 4), (0, 1), (2, 1)])
def test_attempts_beyond_the_bound_or_counted_backwards_are_found(first: int, second: int) -> None:
    history = [
        enqueued("1", 1),
        attempt("1", 10, 10, 20, number=first)[0],
        *attempt("1", 11, 30, 40, number=second),
    ]
    assert rules(history) == {"attempts"}


def test_keys_do_not_mix() -> None:
    history = [enqueued("1", 1, "a"), enqueued("2", 2, "b")]
    history += attempt("1", 10, 10, 50, "a") + attempt("2", 9, 20, 30, "b")
    assert rules(history) == set()
