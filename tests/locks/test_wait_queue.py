"""Which waiter may take a slot: first come, first served, even if waiters die."""

from hypothesis import given
from hypothesis import strategies as st

from pelton.locks.acquisition import GLANCE_S, PATIENCE_S, AskPresence, AskSlot, PassedTicket, TakeSlot, Wait, WaitQueue
from pelton.locks.lock_table import Holding, LockRow, Ticket, encode


def _queue(slots: int = 1) -> WaitQueue:
    return WaitQueue([f"s.{number}" for number in range(slots)], 10.0, 0.0)


def _held(key: str, revision: int, owner: str, ttl: int = 30, slots: int = 1) -> LockRow:
    return LockRow(key, revision, encode(Holding(owner=owner, ttl=ttl, slots=slots)))


def _ticket(owner: str, revision: int, number: int = 0, presence: str = "") -> LockRow:
    return LockRow(f"line.s.{owner}", revision, encode(Ticket(number=number, presence=presence)))


def test_what_is_free_is_taken_at_its_revision() -> None:
    queue = _queue()
    assert queue.decide("me", 0.0) == TakeSlot("s.0", 0)
    queue.note(LockRow("s.0", 5, None), 0.0)
    assert queue.decide("me", 0.0) == TakeSlot("s.0", 5)


def test_what_is_held_is_waited_for_until_it_has_not_been_renewed_for_its_time_to_live() -> None:
    queue = _queue()
    queue.note(_held("s.0", 5, "other"), 1.0)
    assert queue.decide("me", 2.0) == Wait(32.0)
    queue.note(_held("s.0", 6, "other"), 11.0)
    assert queue.decide("me", 31.0) == Wait(42.0)
    assert queue.decide("me", 42.0) == TakeSlot("s.0", 6)


def test_a_marker_that_comes_too_early_is_not_believed_one_in_time_is() -> None:
    second = 1_000_000_000
    for seconds, wait in ((1, True), (30, False)):
        queue = _queue()
        held = _held("s.0", 5, "other")
        queue.note(held._replace(time_ns=100 * second), 1.0)
        queue.note(LockRow("s.0", 6, None, (100 + seconds) * second, is_expired=True), 2.0)
        assert queue.decide("me", 2.0) == (Wait(31.0) if wait else TakeSlot("s.0", 6))
        assert queue.decide("me", 31.0) == TakeSlot("s.0", 6)
    # A holder's own word is always believed.
    queue.note(_held("s.0", 7, "other"), 40.0)
    queue.note(LockRow("s.0", 8, None), 41.0)
    assert queue.decide("me", 41.0) == TakeSlot("s.0", 8)


def test_news_that_are_old_change_nothing() -> None:
    queue = _queue()
    queue.note(_held("s.0", 6, "other"), 1.0)
    queue.note(LockRow("s.0", 5, None), 2.0)
    queue.note(_held("s.0", 6, "other"), 20.0)
    assert queue.decide("me", 2.0) == Wait(32.0)


def test_the_first_in_line_takes_it_and_the_others_wait_for_their_turn() -> None:
    queue = _queue()
    for owner, revision in (("a", 2), ("b", 3), ("c", 4)):
        queue.note(_ticket(owner, revision), 0.0)
    assert queue.decide("a", 0.0) == TakeSlot("s.0", 0)
    assert queue.decide("b", 0.0) == Wait(PATIENCE_S)
    assert queue.decide("c", 0.0) == Wait(2 * PATIENCE_S)
    assert queue.decide("new", 0.0) == Wait(3 * PATIENCE_S)
    # Those who are passed by have had their turn: their tickets go with that.
    assert queue.decide("c", 2 * PATIENCE_S) == TakeSlot("s.0", 0, (PassedTicket("a", 2), PassedTicket("b", 3)))


def test_one_who_is_gone_is_crossed_off_as_soon_as_it_lets_a_free_slot_lie() -> None:
    queue = _queue()
    for owner, revision in (("a", 2), ("b", 3), ("c", 4)):
        queue.note(_ticket(owner, revision, presence=f"at {owner}"), 0.0)
    assert queue.decide("b", 0.0) == Wait(GLANCE_S)
    # Those that do not wait for the first one to wake up ask at once.
    assert queue.decide("b", 0.0, glance=0.0) == queue.decide("b", GLANCE_S) == AskPresence("a", "at a", 2)
    # The third one in the queue asks about the first one too, and not yet about the second one.
    ask = queue.decide("c", GLANCE_S)
    assert ask == AskPresence("a", "at a", 2)
    queue.note_answer(ask, GLANCE_S, is_gone=True)
    assert queue.decide("b", GLANCE_S) == TakeSlot("s.0", 0)
    assert queue.decide("c", GLANCE_S) == AskPresence("b", "at b", 3)


def test_one_who_is_there_has_its_time_and_is_asked_about_once() -> None:
    queue = _queue()
    queue.note(_ticket("a", 2, presence="at a"), 0.0)
    queue.note_answer(AskPresence("a", "at a", 2), 0.1, is_gone=False)
    assert queue.decide("me", 0.1) == Wait(PATIENCE_S)
    # Until a slot is free that it could take.
    queue.note(_held("s.0", 5, "other"), 0.2)
    queue.note(LockRow("s.0", 6, None), 1.0)
    assert queue.decide("me", 1.0 + GLANCE_S) == AskPresence("a", "at a", 2)


def test_an_answer_about_an_older_ticket_says_nothing_of_a_newer_one() -> None:
    queue = _queue()
    queue.note(_ticket("a", 2, presence="at a"), 0.0)
    queue.note(_ticket("a", 7, number=2, presence="at b"), 0.0)
    queue.note_answer(AskPresence("a", "at a", 2), 0.1, is_gone=True)
    assert queue.position("me", 0.1) == 1
    queue.note(LockRow("line.s.a", 8, None), 0.2)
    queue.note_answer(AskPresence("a", "at b", 7), 0.2, is_gone=True)
    assert queue.position("me", 0.2) == 0


def test_of_several_free_slots_those_are_asked_about_whose_turn_it_is() -> None:
    queue = _queue(2)
    for owner, revision in (("a", 2), ("b", 3), ("c", 4)):
        queue.note(_ticket(owner, revision, presence=f"at {owner}"), 0.0)
    queue.note_answer(AskPresence("a", "at a", 2), 0.0, is_gone=False)
    assert queue.decide("me", 0.0, glance=0.0) == AskPresence("b", "at b", 3)
    queue.note_answer(AskPresence("b", "at b", 3), 0.0, is_gone=False)
    assert queue.decide("me", 0.0, glance=0.0) == Wait(2 * PATIENCE_S)


def test_a_ticket_that_is_renewed_keeps_its_place() -> None:
    queue = _queue()
    queue.note(_ticket("a", 2), 0.0)
    queue.note(_ticket("b", 3), 0.0)
    queue.note(_ticket("a", 9, number=2), 8.0)
    assert (queue.position("a", 8.0), queue.position("b", 8.0)) == (0, 1)
    # The one that is not renewed ends, notified or not.
    assert queue.position("new", 11.0) == 1
    queue.note(LockRow("line.s.a", 12, None), 11.0)
    assert queue.position("new", 11.0) == 0


def test_who_holds_does_not_wait() -> None:
    queue = _queue(2)
    queue.note(_ticket("a", 2), 0.0)
    queue.note(_held("s.0", 3, "a", slots=2), 0.0)
    assert queue.decide("me", 0.0) == TakeSlot("s.1", 0)
    # Also not when it has died before it could remove its ticket.
    queue.note(LockRow("s.0", 4, None), 1.0)
    assert queue.position("me", 1.0) == 0


def test_of_several_free_slots_each_in_line_has_its_own() -> None:
    queue = _queue(3)
    for owner, revision in (("a", 2), ("b", 3), ("c", 4)):
        queue.note(_ticket(owner, revision), 0.0)
    taken = {queue.decide(owner, 0.0) for owner in "abc"}
    assert taken == {TakeSlot("s.0", 0), TakeSlot("s.1", 0), TakeSlot("s.2", 0)}


def test_a_slot_of_which_only_the_revision_is_known_is_asked_about() -> None:
    queue = _queue()
    queue.note_refusal("s.0", 7, 1.0)
    assert queue.decide("me", 1.0) == Wait(6.0)
    assert queue.decide("me", 6.0) == AskSlot("s.0")
    queue.note(_held("s.0", 7, "other"), 6.0)
    assert queue.decide("me", 6.0) == Wait(37.0)
    queue.note_refusal("s.0", 0, 7.0)
    assert queue.decide("me", 7.0) == TakeSlot("s.0", 0)
    queue.note_refusal("s.0", None, 8.0)
    assert queue.decide("me", 8.0) == Wait(13.0)
    queue.absent("s.0", 13.0)
    assert queue.decide("me", 13.0) == TakeSlot("s.0", 0)


def test_what_is_no_holding_is_never_taken() -> None:
    queue = _queue()
    queue.note(LockRow("s.0", 3, b"\xff"), 0.0)
    assert queue.decide("me", 1000.0) == AskSlot("s.0")
    queue.note(LockRow("s.0", 4, None), 1000.0)
    assert queue.decide("me", 1000.0) == TakeSlot("s.0", 4)


def test_how_many_slots_there_are_has_to_be_agreed_on() -> None:
    queue = _queue(3)
    queue.note(_held("s.0", 3, "other", slots=5), 0.0)
    assert queue.disagreement(3) == 5
    assert queue.disagreement(5) == 0


@given(
    slots=st.integers(1, 4),
    holders=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=4),
    waiters=st.integers(0, 5),
    at=st.floats(0, 200),
)
def test_nobody_waits_without_a_time_at_which_to_look_again(
    slots: int, holders: list[tuple[int, int]], waiters: int, at: float
) -> None:
    queue = _queue(slots)
    for revision, (slot, ttl) in enumerate(holders, start=1):
        if slot < slots:
            queue.note(_held(f"s.{slot}", revision, f"h{revision}", ttl, slots), 0.0)
    for number in range(waiters):
        queue.note(_ticket(f"w{number}", 100 + number), 0.0)
    decision = queue.decide("me", at)
    assert not isinstance(decision, Wait) or at < decision.until <= at + 61 + 10 * PATIENCE_S
    # Whatever the others do or fail to do, each waiter gets its turn.
    assert isinstance(queue.decide("me", 62 + 10 * PATIENCE_S), TakeSlot)
