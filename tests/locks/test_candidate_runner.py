"""Candidate runners on a store whose clock is set and whose requests, replies and events are lost and late."""

from __future__ import annotations

import pytest

from pelton.locks.campaign import Campaign, Lost, News, Won
from pelton.locks.candidate_runner import CandidateRunner, StoreEnded, open_record
from tests.kit.hazards import Hazards, SimulatedClient, World

TTL = 4.0


class Candidate:
    """A client that stands for election."""

    def __init__(self, client: SimulatedClient) -> None:
        self.client = client
        self.token = 0
        self.runner: CandidateRunner | None = None
        self.won: list[int] = []

    async def stand(self) -> None:
        client = self.client
        runtime = client.runtime
        # The bucket exists; the requests of opening it are not tested here.
        record = await open_record(client.world.jet, "b", "s", client.name, None, strict=False, make=False)
        campaign = Campaign(TTL, runtime.ids.new, lambda tries: 0.05 * tries, runtime.random.uniform(0.0, 0.02 * TTL))
        self.runner = CandidateRunner(runtime, lambda: record.over(client.jet), campaign, self.hear)
        await self.runner.run()

    def hear(self, news: News | StoreEnded) -> None:
        if isinstance(news, Won):
            self.token = news.token
            self.won.append(news.token)
        elif isinstance(news, Lost):
            self.token = 0

    @property
    def leads(self) -> bool:
        """What ``Term.is_held`` would return: a paused client does not call it."""
        client = self.client
        if not self.token or self.runner is None or not client.is_alive or client.clock.is_paused:
            return False
        token, until = self.runner.term
        return token == self.token and client.clock.monotonic() < until


class Play:
    """Candidates that start, pause and stop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.all: list[Candidate] = []
        self.highest = 0

    def join(self, hazards: Hazards) -> None:
        candidate = Candidate(self.world.client(f"c{len(self.all)}", hazards))
        candidate.client.spawn(candidate.stand())
        self.all.append(candidate)

    def watch(self) -> None:
        leaders = [one for one in self.all if one.leads]
        assert len(leaders) <= 1, [(one.client.name, one.token) for one in leaders]
        for one in leaders:
            assert one.token >= self.highest, f"{one.client.name} leads with {one.token} after {self.highest}"
            self.highest = one.token

    def trouble(self, hazards: Hazards) -> None:
        random, clock = self.world.random, self.world.clock
        if random.random() < 0.05:
            # The store's wall clock: keys expire too early, or hardly ever.
            clock.set_wall(clock.now() + round(random.uniform(-2, 2) * TTL * 1e9))
        for one in [one for one in self.all if one.client.is_alive]:
            chance = random.random()
            if one.client.clock.is_paused:
                if chance < 0.4:
                    one.client.resume()
            elif chance < 0.05:
                one.client.pause()
            elif chance < 0.08:
                one.client.crash()
                self.join(hazards)

    def calm(self) -> None:
        for one in self.all:
            one.client.hazards = Hazards()
            if one.client.clock.is_paused:
                one.client.resume()


@pytest.mark.at_length
@pytest.mark.parametrize("part", range(2))
async def test_there_are_never_two_and_somebody_leads_again(part: int, pytestconfig: pytest.Config) -> None:
    terms = 0
    for seed in range(part, max(pytestconfig.getoption("simulated") // 40, 2), 2):
        async with World(seed) as world:
            await world.jet.create_bucket("b", ttl=TTL, limit_marker_ttl=TTL * (seed % 2))
            play = Play(world)
            hazards = Hazards(lost_request=0.05, lost_reply=0.05, lost_event=0.05, slow=0.1, longest=3.0, drift=0.01)
            for _ in range(3):
                play.join(hazards)
            for _ in range(30):
                play.trouble(hazards)
                await world.run(1.0, tick=0.05, watch=play.watch)
            play.calm()
            await world.run(4 * TTL, tick=0.05, watch=play.watch)
            assert any(one.leads for one in play.all), f"seed {seed}: nobody leads"
            terms += sum(len(one.won) for one in play.all)
    assert terms > 1
