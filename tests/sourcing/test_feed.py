"""Feeding another store: messages in order, each once, whichever process is away or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import AckOp, Outgoing, PubAck, ServerUnreachableError
from pelton.cluster import connection
from pelton.testing import ManualRuntime, manual_runtime
from tests.kit.nats_server import nats_server


@pytest.fixture
def runtime() -> ManualRuntime:
    return manual_runtime()


@pytest.fixture
async def stores(tmp_path: Path, runtime: ManualRuntime) -> AsyncIterator[tuple[pelton.Jet, pelton.Jet]]:
    """Two stores, each with a stream of the same subjects."""
    paths = [str(tmp_path / name) for name in ("edge", "hub")]
    async with pelton.open(paths[0], runtime=runtime) as edge, pelton.open(paths[1], runtime=runtime) as hub:
        for store in (edge, hub):
            await store.create_stream("S", subjects=["s.>"])
        yield edge, hub


async def publish(jet: pelton.Jet, first: int, last: int) -> None:
    await jet.publish_batch([(f"s.{n % 7}", b"%d" % n) for n in range(first, last)])


async def data_of(jet: pelton.Jet, stream: str = "S") -> list[int]:
    handle = await jet.stream(stream)
    state = (await handle.info()).state
    return [int((await handle.get_message(seq)).data) for seq in range(1, state.last_seq + 1)]


class Faulty:
    """A backend whose next calls of one method fail, after or before they took effect."""

    def __init__(self, backend: Any, method: str, *, times: int, after: bool) -> None:
        self._backend, self._method, self.left, self._after = backend, method, times, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name != self._method:
            return found

        async def failing(*args: Any) -> Any:
            result = await found(*args) if self._after or not self.left else None
            if self.left:
                self.left -= 1
                raise ServerUnreachableError("hub", "it is away")
            return result

        return failing


async def turning(runtime: ManualRuntime, work: asyncio.Task[int]) -> int:
    """Let time pass until work is done."""
    while not work.done():
        runtime.clock.advance(1)
        await asyncio.sleep(0)
    return work.result()


async def test_messages_come_in_order_and_go_on_where_they_were(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await publish(edge, 0, 2500)
    assert await edge.feed("S", hub, until_empty=True) == 2500
    await publish(edge, 2500, 2600)
    assert await edge.feed("S", hub, until_empty=True) == 100
    assert await data_of(hub) == list(range(2600))


async def test_headers_travel_but_no_conditions(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await edge.publish("s.1", b"1", msg_id="mine", headers={"X": "1", "Nats-Expected-Stream": "S"})
    await edge.feed("S", hub, until_empty=True)
    headers = (await (await hub.stream("S")).get_message(1)).headers
    assert set(headers) == {"X", "Nats-Msg-Id", "Pelton-Feed"}


async def test_a_part_is_carried(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await publish(edge, 0, 14)
    await edge.feed("S", hub, name="part", filters=["s.3"], until_empty=True)
    assert await data_of(hub) == [3, 10]


@pytest.mark.parametrize("after", [False, True])
async def test_a_target_that_is_away_is_waited_for(
    stores: tuple[pelton.Jet, pelton.Jet], runtime: ManualRuntime, after: bool
) -> None:
    edge, hub = stores
    await publish(edge, 0, 50)
    hub.backend = Faulty(hub.backend, "publish_batch", times=2000, after=after)  # type: ignore[assignment]  # a part
    work = asyncio.create_task(edge.feed("S", hub, until_empty=True))
    assert await turning(runtime, work) == 50
    assert await data_of(hub) == list(range(50))


async def test_a_death_before_the_note_doubles_nothing_however_late(
    stores: tuple[pelton.Jet, pelton.Jet], runtime: ManualRuntime
) -> None:
    edge, hub = stores
    await publish(edge, 0, 50)

    async def dies(stream: str, consumer: str, acks: Sequence[AckOp]) -> None:
        raise pelton.StoreClosedError("edge", "killed")

    kept, edge.backend.ack = edge.backend.ack, dies  # type: ignore[method-assign, assignment]  # of this one store
    with pytest.raises(pelton.StoreClosedError):
        await edge.feed("S", hub, until_empty=True)
    edge.backend.ack = kept  # type: ignore[method-assign]  # as it was
    # Longer than any duplicate window.
    runtime.clock.advance(7200)
    await publish(edge, 50, 60)
    await edge.feed("S", hub, until_empty=True)
    assert await data_of(hub) == list(range(60))


async def test_a_full_target_is_waited_for(stores: tuple[pelton.Jet, pelton.Jet], runtime: ManualRuntime) -> None:
    edge, hub = stores
    await publish(edge, 0, 20)
    full = await hub.update_stream("S", max_msgs=5, discard="new")
    work = asyncio.create_task(edge.feed("S", hub, until_empty=True))
    while (await full.info()).state.messages < 5:
        await asyncio.sleep(0)
    await hub.update_stream("S", max_msgs=100)
    await turning(runtime, work)
    assert await data_of(hub) == list(range(20))


async def test_what_nobody_takes_is_told(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await hub.delete_stream("S")
    await publish(edge, 0, 1)
    with pytest.raises(pelton.NoStreamForSubjectError):
        await edge.feed("S", hub, until_empty=True)


async def test_who_begins_takes_over(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    await publish(edge, 0, 10)
    real = hub.backend.publish_batch

    async def overtaken(messages: Sequence[Outgoing]) -> list[PubAck]:
        hub.backend.publish_batch = real  # type: ignore[method-assign]  # as it was
        assert await edge.feed("S", hub, until_empty=True) == 10
        return await real(messages)

    hub.backend.publish_batch = overtaken  # type: ignore[method-assign]  # of this one store
    with pytest.raises(pelton.AckRejectedError):
        await edge.feed("S", hub, until_empty=True)
    assert await data_of(hub) == list(range(10))


async def test_who_stood_still_with_a_batch_doubles_nothing(
    stores: tuple[pelton.Jet, pelton.Jet], runtime: ManualRuntime
) -> None:
    edge, hub = stores
    await publish(edge, 0, 1500)
    real, pulls, others = edge.backend.pull, 0, list[asyncio.Task[int]]()

    async def stands_still(*args: Any) -> list[Any]:
        nonlocal pulls
        pulls += 1
        found = await real(*args)
        if pulls == 2:
            # Longer than any duplicate window; in the meantime another one continues.
            edge.backend.pull = real  # type: ignore[method-assign]  # as it was
            runtime.clock.advance(7200)
            # It is another process: that this one gives up does not end it.
            others.append(asyncio.create_task(edge.feed("S", hub, until_empty=True)))
            await asyncio.shield(others[0])
        return found

    edge.backend.pull = stands_still  # type: ignore[method-assign]  # of this one store
    # As a replaced feeder or, if that is noticed first, by its acks of messages that the other one has settled.
    with pytest.raises(pelton.AckRejectedError, match=r"process feeds|settled already|been replaced|was deleted"):
        await edge.feed("S", hub, until_empty=True)
    await others[0]
    assert await data_of(hub) == list(range(1500))


async def test_an_outage_of_hours_has_nothing_delivered_again(
    stores: tuple[pelton.Jet, pelton.Jet], runtime: ManualRuntime
) -> None:
    edge, hub = stores
    await publish(edge, 0, 2500)
    hub.backend = Faulty(hub.backend, "publish_batch", times=1000, after=False)  # type: ignore[assignment]  # a part
    work = asyncio.create_task(edge.feed("S", hub, until_empty=True))
    assert await turning(runtime, work) == 2500
    assert runtime.clock.monotonic() > 3600
    assert await data_of(hub) == list(range(2500))


async def test_deliveries_that_are_lost_on_the_way_are_carried(
    stores: tuple[pelton.Jet, pelton.Jet], runtime: ManualRuntime
) -> None:
    edge, hub = stores
    await publish(edge, 0, 2500)
    edge.backend = Faulty(edge.backend, "pull", times=2, after=True)  # type: ignore[assignment]  # a part
    work = asyncio.create_task(edge.feed("S", hub, until_empty=True))
    assert await turning(runtime, work) == 2500
    assert await data_of(hub) == list(range(2500))


async def test_who_waits_for_messages_is_overtaken_as_well(stores: tuple[pelton.Jet, pelton.Jet]) -> None:
    edge, hub = stores
    first = asyncio.create_task(edge.feed("S", hub))
    await publish(edge, 0, 10)
    while (await (await hub.stream("S")).info()).state.messages < 10:
        await asyncio.sleep(0)
    second = asyncio.create_task(edge.feed("S", hub))
    number = 10
    while not first.done():
        await publish(edge, number, number + 5)
        number += 5
        await asyncio.sleep(0)
    assert isinstance(first.exception(), pelton.AckRejectedError)
    while (await (await hub.stream("S")).info()).state.messages < number:
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert await data_of(hub) == list(range(number))


class Forgetting:
    """A target during whose first batch the origin forgets its deliveries, as a server does that is killed."""

    def __init__(self, backend: Any, consumer: pelton.Consumer) -> None:
        self._backend, self._consumer, self._has_forgotten = backend, consumer, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        stored: list[PubAck] = await self._backend.publish_batch(messages)
        if not self._has_forgotten:
            while (await self._consumer.info()).delivered.stream_seq <= len(messages):
                await asyncio.sleep(0)
            self._has_forgotten = True
            await self._consumer.reset(1)
        return stored


async def test_to_a_cluster_and_back_through_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_SILENCE_S", 0.2)
    monkeypatch.setattr(connection, "_SWEEP_S", 0.05)
    with nats_server(tmp_path / "nats") as server:
        async with (
            pelton.open(str(tmp_path / "edge")) as edge,
            pelton.open(str(tmp_path / "back")) as back,
            pelton.open(server.url, patience=0.5) as hub,
        ):
            for store in (edge, hub, back):
                await store.create_stream("S", subjects=["s.>"])
            await publish(edge, 0, 1500)
            work = asyncio.create_task(edge.feed("S", hub))
            while not (await (await hub.stream("S")).info()).state.messages:
                await asyncio.sleep(0.001)
            server.kill()
            await publish(edge, 1500, 4000)
            server.start()
            consumer = await (await edge.stream("S")).consumer("feed_S")
            while (info := await consumer.info()).num_pending or info.num_ack_pending:
                await asyncio.sleep(0.01)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            assert await hub.feed("S", back, filters=["s.none"], until_empty=True) == 0
            forgetful = await (await hub.stream("S")).consumer("feed_S")
            back.backend = Forgetting(back.backend, forgetful)  # type: ignore[assignment]  # a part
            assert await hub.feed("S", back, until_empty=True) == 4000
            assert await data_of(back) == list(range(4000))
