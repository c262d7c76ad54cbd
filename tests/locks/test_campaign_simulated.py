"""A thousand simulated elections: never two leaders, always one again in bounded time."""

from random import Random

import pytest

from tests.locks.election_simulation import Troubles, Village
from tests.locks.gopher import Gopher

_PARTS = 4


def election_simulation(seed: int) -> Village:
    rnd = Random(seed)

    def some(highest: float) -> float:
        return rnd.choice((0.0, rnd.uniform(0, highest)))

    troubles = Troubles(
        lost=some(0.3),
        slow=some(0.2),
        drift=some(0.02),
        pauses=some(0.02),
        crashes=some(0.02),
        cuts=some(0.02),
        steps=some(0.05),
        meddling=some(0.02),
        resigning=some(0.02),
    )
    return Village(
        seed,
        troubles,
        ttl=rnd.choice((1.0, 10.0, 3600.0)),
        size=rnd.randint(1, 5),
        marks=rnd.random() < 0.5,
        neighbours=rnd.random() < 0.5,
    )


@pytest.mark.at_length
@pytest.mark.parametrize("part", range(_PARTS))
def test_there_are_never_two_leaders_and_always_a_new_one(part: int, pytestconfig: pytest.Config) -> None:
    for seed in range(part, pytestconfig.getoption("simulated"), _PARTS):
        one = election_simulation(seed)
        one.run(15)
        one.calm()
        # Whatever happened, one TTL ends everything old, a second one everything that was not confirmed.
        one.run(4)
        leaders = one.leaders()
        one.close()
        assert one.contradictions() == [], f"seed {seed}"
        assert len(leaders) == 1, f"seed {seed}"


@pytest.mark.at_length
def test_candidates_of_nats_kv_leader_elect_never_lead_beside_ours(pytestconfig: pytest.Config) -> None:
    led = {"v": 0, "c": 0}
    for seed in range(pytestconfig.getoption("simulated") // 2):
        rnd = Random(seed)
        troubles = Troubles(
            lost=rnd.choice((0.0, 0.2)),
            slow=rnd.choice((0.0, 0.1)),
            drift=0.01,
            crashes=rnd.choice((0.0, 0.02)),
            cuts=rnd.choice((0.0, 0.02)),
        )
        ttl = rnd.choice((30.0, 60.0, 3600.0))
        one = Village(seed, troubles, ttl=ttl, size=2, marks=rnd.random() < 0.5, visitors=[Gopher, Gopher])
        one.run(30)
        one.close()
        assert one.contradictions() == [], f"seed {seed}"
        for term in one.terms:
            led[term.who[0]] += 1
    assert led["v"] > 0
    assert led["c"] > 0
