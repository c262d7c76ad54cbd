"""Pulls that wait while other openers of the store write: they look again only if that may concern them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

import pelton
from pelton.api import Delivered, PullRequest
from pelton.api.message import PullStatus
from pelton.engine import Engine
from pelton.engine.line import Line
from pelton.testing import manual_runtime


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The consumers that pulls have looked at, one entry for each look."""
    seen: list[str] = []
    look = Line._look

    def note(self: Line) -> tuple[bool, list[float]]:
        seen.append(self._key[1])
        return look(self)

    monkeypatch.setattr(Line, "_look", note)
    return seen


async def _until(looks: list[str], count: int) -> None:
    while len(looks) < count:
        await asyncio.sleep(0)


async def test_a_pull_that_waits_does_not_look_when_others_write_elsewhere(tmp_path: Path, looks: list[str]) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet, pelton.open(tmp_path / "a.pelton") as other:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await jet.create_stream("notes", subjects=["notes.>"])
        consumer = await orders.create_consumer(durable_name="c")
        pull = asyncio.create_task(consumer.fetch(1, timeout=30))
        await _until(looks, 1)
        marked = await (await jet.stream("notes")).create_consumer(durable_name="n")
        before = len(looks)
        for number in range(5):
            await other.publish("notes.1", b"%d" % number)
            # This opener was woken when it has this message.
            [note] = await marked.fetch(1, timeout=30)
            await note.ack()
        assert looks[before:].count("c") == 0
        await other.publish("orders.1", b"mine")
        assert [message.data for message in await pull] == [b"mine"]


async def test_a_pull_that_waits_looks_when_another_opener_hands_a_message_back(
    tmp_path: Path, looks: list[str]
) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet, pelton.open(tmp_path / "a.pelton") as other:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await orders.create_consumer(durable_name="c")
        await jet.publish("orders.1", b"again")
        [held] = await (await (await other.stream("orders")).consumer("c")).fetch(1)
        pull = asyncio.create_task((await orders.consumer("c")).fetch(1, timeout=30))
        await _until(looks, 1)
        await held.nak()
        assert [message.metadata.num_delivered for message in await pull] == [2]


async def test_a_pull_that_waits_ends_when_another_opener_deletes_its_consumer_or_makes_it_anew(
    tmp_path: Path, looks: list[str]
) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet, pelton.open(tmp_path / "a.pelton") as other:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        consumer = await orders.create_consumer(durable_name="c", filter_subject="orders.1")
        pull = asyncio.create_task(consumer.fetch(1, timeout=30))
        await _until(looks, 1)
        others = await other.stream("orders")
        await others.create_consumer(durable_name="c", filter_subject="orders.2")
        await other.publish("orders.2", b"two")
        assert [message.data for message in await pull] == [b"two"]
        pull = asyncio.create_task(consumer.fetch(1, timeout=30))
        before = len(looks)
        await _until(looks, before + 1)
        await others.delete_consumer("c")
        with pytest.raises(pelton.ConsumerNotFoundError):
            await pull


async def test_a_pull_that_is_not_its_turn_does_not_look_all_the_time_for_what_is_due(looks: list[str]) -> None:
    runtime = manual_runtime()
    async with await pelton.open("memory:", runtime=runtime) as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        pinned = await orders.create_consumer(
            durable_name="c", ack_wait=60, priority_policy="pinned_client", priority_groups=["g"], priority_timeout=3600
        )
        await jet.publish("orders.1")
        [held] = await pinned.fetch(1, group="g")
        pull = asyncio.create_task((await orders.consumer("c")).fetch(1, timeout=None, group="g"))
        await _until(looks, 1)
        # The holder of the pin may pull it again, and nobody else.
        runtime.clock.advance(61)
        before = len(looks)
        for _ in range(200):
            runtime.clock.advance(0.001)
            await asyncio.sleep(0)
        assert len(looks) - before < 20
        await held.ack()
        pull.cancel()


class _Client:
    """A client of a server that reads one message, and no more."""

    is_gone = False
    has_room = True

    def deliver(self, messages: Sequence[Delivered]) -> None:
        self.has_room = False

    def beat(self, last_consumer: int, last_stream: int) -> None:
        raise AssertionError

    def end(self, status: PullStatus, left: int, left_bytes: int) -> None:
        """Hear it when the server ends."""


async def test_a_client_without_room_is_not_looked_at_all_the_time_for_what_is_due(looks: list[str]) -> None:
    runtime = manual_runtime()
    async with await pelton.open("memory:", runtime=runtime) as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        await orders.create_consumer(durable_name="c", ack_wait=60)
        await jet.publish("orders.1")
        engine, client = jet.backend, _Client()
        assert isinstance(engine, Engine)
        serving = engine.serving()
        serving.pulls.stand("orders", "c", PullRequest(batch=2), 0, client)
        await _until(looks, 1)
        assert not client.has_room
        runtime.clock.advance(61)
        before = len(looks)
        for _ in range(200):
            runtime.clock.advance(0.001)
            await asyncio.sleep(0)
        assert len(looks) - before < 20
        await serving.close()
