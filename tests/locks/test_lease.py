"""A lease as its holder sees it: it always ends before another holder can start."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pelton.locks.keeper import ClockReading, HeldLease, counted_from

_START = ClockReading(1000.0, 1_700_000_000_000_000_000)


def _after(start: ClockReading, seconds: float, wall: float | None = None) -> ClockReading:
    return ClockReading(start.boot + seconds, start.wall + round((seconds if wall is None else wall) * 1e9))


def test_it_is_due_at_a_third_and_over_at_four_fifths() -> None:
    lease = HeldLease("lock.a", 7, 30, _START)
    assert not lease.is_due(_after(_START, 9.9))
    assert lease.is_due(_after(_START, 10.0))
    assert not lease.is_over(_after(_START, 23.9))
    assert lease.is_over(_after(_START, 24.0))
    assert lease.judge(_after(_START, 24.0))
    assert not lease.judge(_after(_START, 24.0))
    assert (lease.state, lease.seconds_left(_after(_START, 0))) == ("lost", 0.0)


def test_the_clock_on_which_more_has_passed_counts() -> None:
    lease = HeldLease("lock.a", 7, 30, _START)
    assert lease.is_over(_after(_START, 1.0, wall=3600))
    assert lease.is_over(_after(_START, 25.0, wall=-3600))
    assert not lease.is_over(_after(_START, 1.0, wall=-3600))


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    lease = HeldLease("lock.a", 7, 30, _START)
    asked = _after(_START, 10)
    assert lease.try_until(asked) == 7.5
    assert not lease.is_due(_after(_START, 15))
    lease.note_renewal(9, asked)
    assert (lease.revision, lease.token) == (9, 7)
    assert not lease.is_over(_after(_START, 33.9))
    assert lease.is_over(_after(_START, 34.0))


def test_a_wall_clock_that_was_set_back_on_the_way_ends_nothing_too_late() -> None:
    lease = HeldLease("lock.a", 7, 30, counted_from(_START, _after(_START, 0.1, wall=-600)))
    assert lease.is_over(_after(_START, 0.2, wall=0))


def test_a_try_that_failed_is_repeated_soon_and_one_that_was_found_at_once() -> None:
    lease = HeldLease("lock.a", 7, 30, _START)
    now = _after(_START, 12)
    lease.try_until(now)
    lease.note_failure(now)
    assert lease.wake_at() == now.boot + 1.5
    lease.note_found(11, now)
    assert lease.is_due(now)
    assert lease.is_over(_after(_START, 24))


@given(ttl=st.integers(1, 3600), at=st.floats(0, 4000))
def test_a_try_never_lasts_beyond_the_lease(ttl: int, at: float) -> None:
    lease = HeldLease("lock.a", 7, ttl, _START)
    now = _after(_START, at)
    assert now.boot + lease.try_until(now) <= max(now.boot, _START.boot + ttl * 0.8) + 1e-6


class LeaseMachine(RuleBasedStateMachine):
    """A lease beside a store that judges it by the time of the last stored write."""

    def __init__(self) -> None:
        super().__init__()
        self.now = _START
        self.lease = HeldLease("lock.a", 1, 10, self.now)
        # When the store made the last write: never before it was sent.
        self.stored = self.now.boot
        self.revision = 1
        self.sent: ClockReading | None = None

    @rule(seconds=st.floats(0, 5), step=st.sampled_from([0.0, -100.0]))
    def time_passes(self, seconds: float, step: float) -> None:
        self.now = _after(self.now, seconds, wall=seconds + step)
        self.lease.judge(self.now)

    @precondition(lambda self: self.sent is None and self.lease.is_due(self.now))
    @rule()
    def a_renewal_is_sent(self) -> None:
        self.lease.try_until(self.now)
        self.sent = self.now

    @precondition(lambda self: self.sent is not None)
    @rule(is_stored=st.booleans(), is_heard=st.booleans())
    def a_renewal_ends(self, is_stored: bool, is_heard: bool) -> None:
        assert self.sent is not None
        if is_stored and self.now.boot < self.stored + 10:
            self.stored, self.revision = self.now.boot, self.revision + 1
            if is_heard:
                self.lease.note_renewal(self.revision, self.sent)
            else:
                self.lease.note_failure(self.now)
                self.lease.note_found(self.revision, self.now)
        else:
            self.lease.note_failure(self.now)
        self.sent = None

    @invariant()
    def nobody_else_can_have_it_while_it_is_held(self) -> None:
        if not self.lease.is_over(self.now):
            assert self.now.boot < self.stored + 10

    @invariant()
    def an_end_is_for_good(self) -> None:
        if self.lease.state == "lost":
            assert self.lease.is_over(self.now)
            assert self.lease.seconds_left(self.now) == 0.0


TestLeaseMachine = LeaseMachine.TestCase
