"""Simulated shops with limits: whatever happens to workers, no more jobs run, and start, than the limits allow."""

from __future__ import annotations

from random import Random

import pytest

from pelton.queue import JobLimit, Rate
from tests.kit.hazards import Hazards
from tests.queue.limits.checks import broken
from tests.queue.limits.limited_shop import LimitedShop, Rules

_PARTS = 2


def limits(rnd: Random) -> list[JobLimit]:
    """Return limits of some scopes, at least one."""
    scopes = [("", False), ("", True), ("cut", False), ("cut", True)]
    chosen = rnd.sample(scopes, rnd.randint(1, 3))
    return [JobLimit(job=job, per_key=per_key, **_much(rnd)) for job, per_key in chosen]  # type: ignore[arg-type]


def _much(rnd: Random) -> dict[str, object]:
    rate = Rate(rnd.randint(1, 4), rnd.choice((0.5, 1.0, 4.0)), rnd.randint(1, 3))
    concurrency = rnd.randint(1, 3)
    return rnd.choice(({"concurrency": concurrency}, {"rate": rate}, {"concurrency": concurrency, "rate": rate}))


def shop(seed: int) -> LimitedShop:
    rnd = Random(seed)

    def some(highest: float) -> float:
        return rnd.choice((0.0, rnd.uniform(0, highest)))

    # An answer that is late makes a start late: rates count from when a start is decided.
    slow = 0.0 if rnd.random() < 0.5 else some(0.3)
    chosen = limits(rnd)
    if slow:
        chosen = [JobLimit(job=limit.job, per_key=limit.per_key, concurrency=rnd.randint(1, 3)) for limit in chosen]
    lost = some(0.2)
    hazards = Hazards(
        lost_request=lost, lost_reply=lost, lost_event=lost, slow=slow, longest=2.0, patience=0.5, drift=some(0.08)
    )
    return LimitedShop(seed, Rules(chosen, hazards, some(0.1), some(0.1)), rnd.randint(1, 4))


@pytest.mark.at_length
@pytest.mark.parametrize("part", range(_PARTS))
async def test_no_limit_is_exceeded(part: int, pytestconfig: pytest.Config) -> None:
    for seed in range(part, max(pytestconfig.getoption("simulated") // 10, _PARTS), _PARTS):
        simulated = shop(seed)
        await simulated.run(20, 20.0)
        assert broken(simulated.rules.limits, simulated.spans) == [], f"seed {seed}"
