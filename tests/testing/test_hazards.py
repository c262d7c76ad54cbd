"""The simulated world applies the announced failures to its clients, and no others."""

import asyncio

import pytest

from pelton.api import ServerTimeoutError
from pelton.runtime import Signal
from tests.kit.fencing import FencedRegister
from tests.kit.hazards import Hazards, SimulatedClient, World


async def _publish(client: SimulatedClient, number: int, outcomes: list[object]) -> None:
    for _ in range(number):
        try:
            outcomes.append((await client.jet.publish("s", client.name.encode())).seq)
        except ServerTimeoutError as error:
            outcomes.append(error)


async def test_without_hazards_a_client_is_as_the_store_itself() -> None:
    async with World() as world:
        stream = await world.jet.create_stream("s")
        outcomes: list[object] = []
        world.client("a").spawn(_publish(world.client("b"), 3, outcomes))
        await world.run(1.0)
        assert outcomes == [1, 2, 3]
        assert (await stream.info()).state.messages == 3


async def test_a_lost_reply_is_an_error_and_the_message_is_stored_a_lost_request_is_not() -> None:
    async with World() as world:
        stream = await world.jet.create_stream("s")
        outcomes: list[object] = []
        for hazards in (Hazards(lost_reply=1.0), Hazards(lost_request=1.0)):
            client = world.client("a", hazards)
            client.spawn(_publish(client, 1, outcomes))
            await world.run(2.0)
        assert [type(outcome) for outcome in outcomes] == [ServerTimeoutError, ServerTimeoutError]
        assert (await stream.info()).state.messages == 1


async def test_what_was_sent_arrives_although_the_sender_is_dead() -> None:
    async with World(seed=3) as world:
        stream = await world.jet.create_stream("s")
        client = world.client("a", Hazards(slow=1.0, longest=5.0))
        outcomes: list[object] = []
        client.spawn(_publish(client, 1, outcomes))
        await world.settle()
        client.crash()
        await world.run(6.0)
        assert outcomes == []
        assert (await stream.info()).state.messages == 1


async def test_a_paused_client_goes_on_where_it_was_and_its_clock_has_passed() -> None:
    async with World() as world:
        client = world.client("a")
        fired: list[float] = []
        client.clock.call_later(1.0, lambda: fired.append(client.clock.monotonic()))
        client.pause()
        await world.run(5.0)
        assert fired == []
        client.resume()
        assert fired == [pytest.approx(5.0)]


async def test_clocks_are_stepped_and_drift() -> None:
    async with World(seed=1) as world:
        client = world.client("a", Hazards(drift=0.1))
        before = client.clock.now()
        client.clock.step_wall(-3600)
        assert client.clock.now() == before - 3_600_000_000_000
        slept = Signal()

        async def sleep() -> None:
            await client.clock.sleep(10.0)
            slept.notify()

        client.spawn(sleep())
        await world.run(12.0)
        assert slept.generation == 1
        assert client.clock.monotonic() != pytest.approx(12.0)


async def test_events_are_lost_and_an_ordered_reader_finds_them_again() -> None:
    async with World(seed=5) as world:
        await world.jet.create_stream("s")
        client = world.client("a", Hazards(lost_event=0.2, slow=0.2, longest=0.5))
        seen: list[int] = []

        async def read() -> None:
            async for message in (await client.jet.stream("s")).ordered():
                seen.append(message.metadata.stream_seq)

        client.spawn(read())
        for _ in range(30):
            await world.jet.publish("s")
            await world.run(0.2)
        await world.run(40.0)
        assert seen == list(range(1, 31))


def test_a_register_refuses_who_was_replaced() -> None:
    register = FencedRegister()
    assert register.write("a", 1)
    assert register.write("b", 5)
    assert not register.write("a", 1)
    register.check()
    register.write("c", 5)
    with pytest.raises(AssertionError, match="token 5"):
        register.check()


async def test_a_crashed_client_does_nothing_more() -> None:
    async with World() as world:
        client = world.client("a")
        done: list[int] = []

        async def tick() -> None:
            while True:
                await client.clock.sleep(1.0)
                done.append(1)

        task = client.spawn(tick())
        await world.run(3.5)
        client.crash()
        await world.run(3.0)
        assert len(done) == 3
        with pytest.raises(asyncio.CancelledError):
            await task
