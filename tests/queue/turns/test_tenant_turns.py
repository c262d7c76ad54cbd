"""The turns of tenants, as random arrivals and answers go: fair by weight, bounded, and of bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pelton.queue.model.turns import FIRST_PAUSE_S, TenantTurns, in_order

TENANTS = ("a", "b", "c", "d")
weights_of_all = st.fixed_dictionaries({name: st.integers(1, 5) for name in TENANTS})


class Shop:
    """Jobs that wait, and one worker's turns; a take is answered as consumers would."""

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self.turns = TenantTurns(weights)
        self.waiting: dict[str, int] = {}
        self.now = 0.0
        self.started: list[str] = []
        # Of each tenant that waits, the starts of others since its last one.
        self.bypassed: dict[str, Counter[str]] = {}

    def enqueue(self, tenant: str, count: int, *, told: bool) -> None:
        self.waiting[tenant] = self.waiting.get(tenant, 0) + count
        if tenant:
            self.bypassed.setdefault(tenant, Counter())
        if told:
            self.turns.note_enqueued([tenant])

    def look(self, *, anew: bool) -> None:
        counts = {tenant: count for tenant, count in self.waiting.items() if count and tenant}
        self.turns.note_counts(counts, anew=anew)
        assert self.turns.tenants == len(counts)

    def take(self, wanted: int) -> list[str]:
        jobs: list[str] = []
        while len(jobs) < wanted and (plan := self.turns.plan(wanted - len(jobs), self.now)):
            asked = Counter(plan)
            found = {tenant: [tenant] * min(count, self.waiting.get(tenant, 0)) for tenant, count in asked.items()}
            for tenant, got in found.items():
                self.waiting[tenant] = self.waiting.get(tenant, 0) - len(got)
            self.turns.note_answer(asked, found, self.now)
            jobs += in_order(plan, found)
        self.started += jobs
        for tenant in jobs:
            self._note(tenant)
        return jobs

    def _note(self, tenant: str) -> None:
        for name, others in self.bypassed.items():
            others[tenant] += name != tenant
        if tenant in self.bypassed:
            self.bypassed[tenant] = Counter()
        for name in [name for name in self.bypassed if not self.waiting[name]]:
            del self.bypassed[name]


@given(weights_of_all, st.lists(st.integers(1, 9), min_size=20, max_size=60), st.integers(1, 4))
def test_each_has_as_many_starts_a_round_as_its_weight(weights: dict[str, int], takes: list[int], count: int) -> None:
    shop = Shop(weights)
    names = TENANTS[:count]
    for name in names:
        shop.enqueue(name, 10_000, told=True)
    for wanted in takes:
        shop.take(wanted)
    size = sum(weights[name] for name in names)
    for first in range(len(shop.started) - size + 1):
        shares = Counter(shop.started[first : first + size])
        for name in names:
            assert abs(shares[name] - weights[name]) <= 1, (first, shares)


@given(st.data(), weights_of_all)
def test_whoever_waits_is_bypassed_for_a_round_at_most(data: st.DataObject, weights: dict[str, int]) -> None:
    shop = Shop(weights)
    fresh = deque(f"new{n}" for n in range(10_000))
    for _ in range(data.draw(st.integers(1, 60))):
        step = data.draw(st.sampled_from(("enqueue", "new", "take", "look", "pause")))
        if step == "enqueue":
            shop.enqueue(data.draw(st.sampled_from(("", *TENANTS))), data.draw(st.integers(1, 30)), told=True)
        elif step == "new":
            for _ in range(data.draw(st.integers(1, 5))):
                shop.enqueue(fresh.popleft(), 1, told=True)
        elif step == "take":
            shop.take(data.draw(st.integers(1, 6)))
        elif step == "look":
            shop.look(anew=data.draw(st.booleans()))
        else:
            shop.now += FIRST_PAUSE_S
        for name, others in shop.bypassed.items():
            # Those that have joined meanwhile come after it, whoever they are.
            for other, starts in others.items():
                assert starts <= -(-weights.get(other, 1) // weights.get(name, 1)) + 1, (name, others)
    shop.look(anew=True)
    left = sum(shop.waiting.values())
    shop.now += 1
    assert len(shop.take(left + 1)) == left


def test_a_stream_of_newcomers_starves_nobody() -> None:
    shop = Shop({})
    shop.enqueue("patient", 10, told=True)
    for n in range(100):
        shop.enqueue(f"new{n}", 1, told=True)
        shop.enqueue(f"another{n}", 1, told=True)
        shop.take(1)
        shop.look(anew=False)
    assert shop.started.index("patient") < 3


def test_workers_that_soon_end_serve_every_tenant() -> None:
    started = Counter[str]()
    for chance in range(300):
        shop = Shop({"a": 10})
        shop.turns.draw(Random(chance))
        for tenant in ("", *TENANTS):
            shop.enqueue(tenant, 5, told=False)
        shop.look(anew=True)
        started.update(shop.take(1))
    # By their weights, 214 and 21 of each of the others.
    assert started["a"] >= 150
    assert all(started[tenant] >= 5 for tenant in ("", *TENANTS))


def test_a_tenant_that_had_nothing_is_asked_again_later_and_later() -> None:
    turns, asked = TenantTurns({}), 0
    turns.note_enqueued(["a"])
    for hundredth in range(2_000):
        now = hundredth / 100
        while plan := turns.plan(5, now):
            asked += "a" in plan
            turns.note_answer(Counter(plan), {}, now)
    assert 20 < asked < 40
    # One of its jobs is due, or it has more.
    turns.note_retry("a", 20.5)
    assert turns.next_due() <= 20.5
    turns.note_enqueued(["a"])
    assert "a" in turns.plan(5, 20.0)


def test_jobs_without_a_tenant_are_asked_for_beside_those_of_tenants_alone() -> None:
    turns = TenantTurns({})
    turns.note_enqueued(["a"])
    assert turns.next_due() == 0
    assert sorted(turns.plan(2, 0.0)) == ["", "a"]
    for empty in ("a", ""):
        turns.note_answer(Counter([empty]), {}, 0.0)
    assert turns.next_due() == FIRST_PAUSE_S
    assert sorted(turns.plan(2, FIRST_PAUSE_S)) == ["", "a"]
    turns.note_answer(Counter(["", "a"]), {"": ["1"]}, 1.0)
    # It may have more, and a pull waits for that.
    assert turns.next_due() == 1 + 2 * FIRST_PAUSE_S
    assert turns.plan(1, 1.0) == [""]


def test_only_those_with_jobs_are_remembered() -> None:
    shop = Shop({})
    for n in range(3_000):
        shop.enqueue(f"t{n}", 1, told=True)
        if n % 10 == 9:
            shop.take(10)
            shop.look(anew=False)
    assert shop.turns.tenants <= 10
    shop.look(anew=True)
    assert len(shop.take(100)) + len(shop.started) >= 3_000
