"""The decisions of one candidate, step by step; whatever happens to it, its terms end."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pelton.locks.campaign import (
    CLEAR,
    RENEW,
    STAND_DOWN,
    Campaign,
    Campaigned,
    Lost,
    Observation,
    ReadRecord,
    Won,
    WriteRecord,
)

TTL = 100.0


def a_campaign(**options: Any) -> Campaign:
    numbers = iter(range(1_000_000))
    return Campaign(TTL, new_id=lambda: f"id{next(numbers)}", pause=lambda tries: 1.0, **options)


def told(campaign: Campaign) -> list[object]:
    return [news for news in campaign.news() if not isinstance(news, Campaigned)]


def looking(campaign: Campaign, observation: Observation, now: float = 0.0) -> Campaign:
    assert campaign.next(now) == ReadRecord()
    campaign.on_read(now, observation)
    return campaign


def writing(campaign: Campaign, now: float) -> WriteRecord:
    asked = campaign.next(now)
    assert isinstance(asked, WriteRecord)
    return asked


def leading(**options: Any) -> Campaign:
    """Return a candidate that leads since 0, with token 1."""
    campaign = looking(a_campaign(**options), Observation("absent", 0, is_unused=True))
    assert writing(campaign, 0.0).expected == 0
    campaign.wrote(0.0, 1)
    assert told(campaign) == [Won(1)]
    return campaign


# --- winning


def test_where_nothing_was_ever_written_nobody_is_waited_for() -> None:
    assert leading().state == "leader"


def test_where_something_was_a_whole_term_is_waited_for() -> None:
    campaign = looking(a_campaign(), Observation("absent", 7))
    assert writing(campaign, 0.0).expected == 0
    campaign.wrote(1.0, 8)
    assert (told(campaign), campaign.state) == ([], "candidate")
    # In the meantime the key is renewed.
    campaign.wrote(RENEW * TTL + 1, 9) if writing(campaign, RENEW * TTL) else None
    campaign.tick(CLEAR * TTL - 0.1)
    assert told(campaign) == []
    campaign.tick(CLEAR * TTL)
    assert told(campaign) == [Won(8)]


def test_a_leader_that_is_renewed_is_left_alone() -> None:
    campaign = looking(a_campaign(), Observation("put", 3))
    campaign.saw(75.0, Observation("put", 4))
    assert campaign.next(CLEAR * TTL) is None
    assert campaign.wake_at() == 75.0 + CLEAR * TTL


def test_a_key_nobody_renews_is_taken_over_at_once_when_its_writer_has_stood_down() -> None:
    campaign = looking(a_campaign(spread=1.0), Observation("put", 3))
    assert campaign.next(CLEAR * TTL) is None
    assert writing(campaign, CLEAR * TTL + 1).expected == 3
    campaign.wrote(CLEAR * TTL + 2, 9)
    assert told(campaign) == [Won(9)]


def test_a_key_that_was_given_up_is_won_at_once() -> None:
    campaign = looking(a_campaign(), Observation("put", 3))
    campaign.saw(5.0, Observation("released", 7, gave_up=5))
    assert writing(campaign, 5.0).expected == 7
    campaign.wrote(5.1, 11)
    assert told(campaign) == [Won(11)]


def test_a_key_that_ended_early_is_taken_and_its_leader_waited_for() -> None:
    campaign = looking(a_campaign(), Observation("put", 3))
    campaign.saw(5.0, Observation("ended", 4))
    assert writing(campaign, 5.0).expected == 4
    campaign.wrote(6.0, 5)
    assert (told(campaign), campaign.wake_at()) == ([], 5.0 + RENEW * TTL)
    assert campaign.hold is not None
    assert campaign.hold.announce_at == CLEAR * TTL


def test_what_may_have_been_written_unseen_is_waited_for() -> None:
    """Between 3 and 5 there may have been a leader, of which only the end was seen."""
    campaign = looking(a_campaign(), Observation("put", 3))
    campaign.saw(94.0, Observation("ended", 5))
    writing(campaign, 94.0)
    campaign.wrote(94.5, 6)
    assert campaign.hold is not None
    assert campaign.hold.announce_at == 94.0 + CLEAR * TTL


def test_a_create_that_does_not_follow_what_was_seen_is_no_proof() -> None:
    """After 3 vanished without a marker, 4 was written and vanished, too."""
    campaign = looking(a_campaign(), Observation("put", 3))
    assert writing(campaign, CLEAR * TTL).expected == 3
    campaign.on_refusal(CLEAR * TTL)
    looking(campaign, Observation("absent", 3), 97.0)
    assert writing(campaign, 97.0).expected == 0
    campaign.wrote(98.0, 5)
    assert campaign.hold is not None
    assert campaign.hold.announce_at == 98.0 + CLEAR * TTL


def test_the_same_create_that_follows_is_one() -> None:
    campaign = looking(a_campaign(), Observation("put", 3))
    writing(campaign, CLEAR * TTL)
    campaign.on_refusal(CLEAR * TTL)
    looking(campaign, Observation("absent", 3), 97.0)
    writing(campaign, 97.0)
    campaign.wrote(98.0, 4)
    assert told(campaign) == [Won(4)]


# --- leading


def test_a_term_counts_from_before_the_write_was_sent() -> None:
    campaign = looking(a_campaign(), Observation("absent", 0, is_unused=True))
    writing(campaign, 0.0)
    campaign.wrote(80.0, 1)
    assert told(campaign) == [Won(1)]
    campaign.tick(STAND_DOWN * TTL)
    assert told(campaign) == [Lost("it could not be renewed in time")]


def test_a_win_that_is_heard_of_too_late_is_none() -> None:
    campaign = looking(a_campaign(), Observation("absent", 0, is_unused=True))
    writing(campaign, 0.0)
    campaign.wrote(STAND_DOWN * TTL, 1)
    assert (told(campaign), campaign.hold) == ([], None)


def test_a_renewal_is_tried_again_as_the_same_until_the_term_ends() -> None:
    campaign = leading()
    assert campaign.next(RENEW * TTL - 0.1) is None
    first = writing(campaign, RENEW * TTL)
    assert first.expected == 1
    campaign.on_failure(80.0)
    assert campaign.next(81.0) is None
    again = writing(campaign, 82.0)
    assert (again.msg_id, again.sent) == (first.msg_id, RENEW * TTL)
    campaign.wrote(83.0, 2)
    # It counts from the first time: that attempt may have been stored.
    assert campaign.stands_until == RENEW * TTL + STAND_DOWN * TTL


def test_a_renewal_that_comes_after_the_end_revives_nothing() -> None:
    campaign = leading()
    writing(campaign, RENEW * TTL)
    campaign.wrote(STAND_DOWN * TTL + 1, 2)
    assert told(campaign) == [Lost("it could not be renewed in time")]
    assert (campaign.state, campaign.next(STAND_DOWN * TTL + 1)) == ("candidate", ReadRecord())


def test_a_term_that_was_said_to_be_over_is_over() -> None:
    campaign = leading()
    campaign.doubt(5.0, 2)
    assert told(campaign) == []
    campaign.doubt(5.0, 1)
    assert (told(campaign), campaign.hold) == ([Lost("it could not be renewed in time")], None)


def test_a_refused_renewal_ends_the_term() -> None:
    campaign = leading()
    writing(campaign, RENEW * TTL)
    campaign.on_refusal(RENEW * TTL)
    assert told(campaign) == [Lost("another client wrote or deleted the key")]


def test_a_refused_renewal_that_may_have_been_stored_before_is_looked_for() -> None:
    campaign = leading()
    mine = writing(campaign, RENEW * TTL).msg_id
    campaign.on_failure(76.0)
    writing(campaign, 78.0)
    campaign.on_refusal(78.0)
    assert told(campaign) == []
    looking(campaign, Observation("put", 5, mine), 80.0)
    assert (campaign.state, campaign.stands_until) == ("leader", RENEW * TTL + STAND_DOWN * TTL)


def test_what_a_leader_hears_of_others_ends_its_term() -> None:
    for observation in (
        Observation("put", 2, "theirs"),
        Observation("ended", 2),
        Observation("released", 2, gave_up=1),
    ):
        campaign = leading()
        campaign.saw(1.0, Observation("put", 1))
        assert told(campaign) == []
        campaign.saw(1.0, observation)
        assert told(campaign) == [Lost("another client wrote or deleted the key")]


def test_a_bucket_that_was_made_anew_is_waited_for() -> None:
    campaign = looking(a_campaign(), Observation("put", 30))
    campaign.forget(5.0)
    looking(campaign, Observation("absent", 0, is_unused=True), 6.0)
    writing(campaign, 6.0)
    campaign.wrote(6.0, 1)
    assert campaign.hold is not None
    assert campaign.hold.announce_at == 6.0 + CLEAR * TTL


def test_an_answer_of_a_replica_that_lags_does_not_keep_a_candidate_out_for_ever() -> None:
    campaign = looking(a_campaign(), Observation("put", 30))
    writing(campaign, CLEAR * TTL)
    campaign.on_refusal(CLEAR * TTL)
    looking(campaign, Observation("put", 20), 97.0)
    assert writing(campaign, 97.0 + CLEAR * TTL).expected == 20


# --- giving up


def test_a_read_that_news_have_overtaken_is_made_again() -> None:
    campaign = looking(a_campaign(), Observation("put", 5, "other"))
    campaign.recheck()
    assert campaign.next(1.0) == ReadRecord()
    # The follower is faster than the answer.
    campaign.saw(1.0, Observation("put", 6, "other"))
    campaign.saw(1.0, Observation("released", 7, gave_up=6))
    campaign.recheck()
    assert campaign.next(1.0) is None, "one operation at a time"
    campaign.on_read(1.0, Observation("put", 6, "other"))
    looking(campaign, Observation("released", 7, gave_up=6), 1.0)
    assert writing(campaign, 1.0).expected == 7


def test_one_that_gave_up_lets_somebody_else_lead_first() -> None:
    campaign = leading()
    asked = campaign.release(5.0, 50.0)
    assert asked is not None
    assert (asked.expected, asked.clean) == (1, True)
    campaign.saw(5.1, Observation("released", 2, gave_up=1))
    assert (campaign.next(6.0), campaign.wake_at()) == (None, 55.0)
    # Of the one in between only the end was seen.
    campaign.saw(7.0, Observation("released", 4, gave_up=3))
    assert writing(campaign, 7.0).expected == 4


def test_one_that_gives_up_before_it_was_announced_says_nothing_of_those_before() -> None:
    campaign = looking(a_campaign(), Observation("absent", 7))
    writing(campaign, 0.0)
    campaign.wrote(0.0, 8)
    asked = campaign.release(1.0, 50.0)
    assert asked is not None
    assert not asked.clean


def test_one_that_has_nothing_gives_nothing_up() -> None:
    assert looking(a_campaign(), Observation("put", 3)).release(1.0, 50.0) is None


def test_one_term_may_be_enough() -> None:
    campaign = leading(once=True)
    campaign.saw(1.0, Observation("ended", 2))
    assert told(campaign) == [Lost("another client wrote or deleted the key")]
    assert (campaign.next(10 * TTL), campaign.wake_at()) == (None, None)


# --- whatever happens


class Life(RuleBasedStateMachine):
    """A candidate that receives any events in any order."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.revision = 0
        self.asked: WriteRecord | ReadRecord | None = None
        self.campaign = a_campaign()
        self.token = 0
        self.leads = False

    @rule(seconds=st.floats(0.0, 2 * TTL))
    def time(self, seconds: float) -> None:
        self.now += seconds
        self.ask()

    def ask(self) -> None:
        asked = self.campaign.next(self.now)
        if asked is not None:
            assert self.asked is None, "two at once"
            self.asked = asked

    @precondition(lambda self: isinstance(self.asked, WriteRecord))
    @rule(more=st.integers(1, 3), how=st.sampled_from(["wrote", "on_refusal", "on_failure"]))
    def answer(self, more: int, how: str) -> None:
        self.asked = None
        if how == "wrote":
            self.revision += more
            self.campaign.wrote(self.now, self.revision)
        else:
            getattr(self.campaign, how)(self.now)
        self.ask()

    sights = st.sampled_from(["put", "ended", "released"])

    @precondition(lambda self: isinstance(self.asked, ReadRecord))
    @rule(kind=st.one_of(sights, st.just("absent")), more=st.integers(0, 3))
    def look(self, kind: Any, more: int) -> None:
        self.asked = None
        self.revision += more
        self.campaign.on_read(self.now, Observation(kind, self.revision))
        self.ask()

    @rule(kind=sights, more=st.integers(0, 3), late=st.integers(0, 2))
    def see(self, kind: Any, more: int, late: int) -> None:
        self.revision += more
        self.campaign.saw(self.now, Observation(kind, max(self.revision - late, 0)))
        self.ask()

    @rule()
    def doubt(self) -> None:
        self.campaign.recheck()
        self.ask()

    @precondition(lambda self: not self.campaign.is_busy)
    @rule(rest=st.floats(0.0, TTL))
    def give_up(self, rest: float) -> None:
        self.campaign.tick(self.now)
        self.hear()
        if self.campaign.release(self.now, rest) is not None:
            self.leads = False
        self.ask()

    def hear(self) -> None:
        for news in self.campaign.news():
            if isinstance(news, Won):
                assert not self.leads, "won twice"
                assert news.token > self.token, "a token that does not grow"
                self.leads, self.token = True, news.token
            elif isinstance(news, Lost):
                assert self.leads, "lost what it did not have"
                self.leads = False

    @invariant()
    def a_term_has_an_end(self) -> None:
        self.hear()
        hold = self.campaign.hold
        assert self.leads == (hold is not None and hold.announced)
        if hold is not None:
            assert self.now < self.campaign.stands_until
            wake = self.campaign.wake_at()
            assert wake is not None
            assert wake <= self.campaign.stands_until


TestLife = Life.TestCase
