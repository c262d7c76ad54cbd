"""Simulated shops: whatever happens to workers, jobs of a key run one at a time, in order, and take effect once."""

from random import Random

import pytest

from tests.queue.keys.shop import Shop, Troubles

_PARTS = 4


def shop(seed: int) -> Shop:
    rnd = Random(seed)

    def some(highest: float) -> float:
        return rnd.choice((0.0, rnd.uniform(0, highest)))

    troubles = Troubles(
        lost=some(0.2), slow=some(0.3), drift=some(0.08), pauses=some(0.1), crashes=some(0.1), steps=some(0.05)
    )
    return Shop(seed, troubles, keys=rnd.randint(1, 4), workers=rnd.randint(1, 4))


@pytest.mark.at_length
@pytest.mark.parametrize("part", range(_PARTS))
async def test_no_promise_is_contradicted(part: int, pytestconfig: pytest.Config) -> None:
    for seed in range(part, pytestconfig.getoption("simulated") // 10, _PARTS):
        assert await shop(seed).run(20, 30.0) == [], f"seed {seed}"


async def test_equal_seeds_make_equal_histories() -> None:
    """So that what a seed contradicts can be looked into."""
    one, other = shop(2), shop(2)
    await one.run(20, 30.0)
    await other.run(20, 30.0)
    assert one.events == other.events
