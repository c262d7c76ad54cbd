"""When the ack wait of prefetched messages is extended, and when it no longer is: step by step, without a store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pelton.api import AckOp, AckRejectedError, ConsumerConfig, Delivered, PeltonError, StoreBusyError
from pelton.jet.consumer import PrefetchKeeper, interval_of
from pelton.jet.message import Message
from pelton.testing import ManualRuntime, manual_runtime

_WAIT_S = 30


class Store:
    """Records the requests; refuses the messages, or all of them, that a test names."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.lost: set[int] = set()
        self.error: PeltonError | None = None
        self.answers: asyncio.Event | None = None

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        assert {ack.kind for ack in acks} == {"progress"}
        self.asked.append([ack.seq for ack in acks])
        if self.answers is not None:
            await self.answers.wait()
        if self.error is not None:
            raise self.error
        return [AckRejectedError("S", "c", ack.seq, "replaced") if ack.seq in self.lost else None for ack in acks]


class Ready:
    """The prefetched messages."""

    def __init__(self, *numbers: int, num_delivered: int = 1) -> None:
        self.messages = [message(number, num_delivered) for number in numbers]

    def ready(self) -> list[Message]:
        return list(self.messages)

    def drop(self, messages: Iterable[Message]) -> None:
        gone = set(messages)
        self.messages = [message for message in self.messages if message not in gone]

    @property
    def numbers(self) -> list[int]:
        return [message.delivered.seq for message in self.messages]


def message(seq: int, num_delivered: int = 1) -> Message:
    backend: Any = None
    return Message(backend, Delivered("s", seq, 0, None, b"", seq, num_delivered, 0, "S", "c"))


@pytest.fixture
def runtime() -> ManualRuntime:
    return manual_runtime()


@pytest.fixture
def store() -> Store:
    return Store()


def keeper(store: Any, runtime: ManualRuntime, **config: Any) -> PrefetchKeeper:
    return PrefetchKeeper(store, ConsumerConfig(ack_wait=_WAIT_S, **config), ("S", "c"), runtime)


async def pass_time(runtime: ManualRuntime, seconds: float) -> None:
    """Advance in steps, so that requests are answered before the next check."""
    for _ in range(round(seconds)):
        runtime.clock.advance(1)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_what_has_lain_since_the_last_look_is_extended(store: Store, runtime: ManualRuntime) -> None:
    ready = Ready(1, 2)
    kept = keeper(store, runtime)
    kept.start(ready)
    await pass_time(runtime, 10)
    assert store.asked == []
    ready.messages.append(message(3))
    await pass_time(runtime, 10)
    assert store.asked == [[1, 2]]
    del ready.messages[0]
    await pass_time(runtime, 10)
    assert store.asked == [[1, 2], [2, 3]]
    kept.stop()
    await pass_time(runtime, 60)
    assert len(store.asked) == 2


async def test_no_message_lies_for_a_whole_ack_wait(store: Store, runtime: ManualRuntime) -> None:
    ready = Ready()
    kept = keeper(store, runtime)
    kept.start(ready)
    for number in range(1, 21):
        ready.messages = [message(number)]
        before = len(store.asked)
        waited = 0
        while len(store.asked) == before:
            await pass_time(runtime, 1)
            waited += 1
        assert waited <= _WAIT_S * 2 / 3
    kept.stop()


async def test_what_somebody_else_has_is_dropped(store: Store, runtime: ManualRuntime) -> None:
    ready = Ready(1, 2, 3)
    kept = keeper(store, runtime)
    kept.start(ready)
    store.lost = {2}
    await pass_time(runtime, 20)
    assert ready.numbers == [1, 3]
    kept.stop()


async def test_a_store_that_cannot_now_is_asked_again(store: Store, runtime: ManualRuntime) -> None:
    ready = Ready(1)
    kept = keeper(store, runtime)
    kept.start(ready)
    store.error = StoreBusyError("a.pelton")
    await pass_time(runtime, 30)
    store.error = None
    await pass_time(runtime, 10)
    assert store.asked == [[1], [1], [1]]
    assert ready.numbers == [1]
    kept.stop()


async def test_one_request_is_under_way_at_a_time(store: Store, runtime: ManualRuntime) -> None:
    kept = keeper(store, runtime)
    kept.start(Ready(1))
    store.answers = asyncio.Event()
    await pass_time(runtime, 60)
    assert store.asked == [[1]]
    store.answers.set()
    await pass_time(runtime, 10)
    assert store.asked == [[1], [1]]
    kept.stop()


async def test_a_program_that_hangs_lets_others_have_them_but_for_their_last_delivery(
    store: Store, runtime: ManualRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    ready = Ready(1, 2)
    ready.messages.append(message(3, num_delivered=4))
    kept = keeper(store, runtime, max_deliver=4)
    kept.start(ready)
    await pass_time(runtime, 600)
    assert ready.numbers == [1, 2, 3]
    with caplog.at_level(logging.WARNING, "pelton"):
        await pass_time(runtime, 40)
    assert "2 prefetched messages are released" in caplog.text
    assert ready.numbers == [3]
    assert store.asked[-1] == [3]
    kept.stop()


async def test_one_that_is_taken_now_and_then_does_not_hang(store: Store, runtime: ManualRuntime) -> None:
    ready = Ready(*range(1, 6))
    kept = keeper(store, runtime)
    kept.start(ready)
    while ready.messages:
        await pass_time(runtime, 500)
        assert store.asked[-1] == ready.numbers
        del ready.messages[0]
    kept.stop()


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({"ack_wait": 30}, 10.0),
        ({"ack_wait": 30, "backoff": (3, 60)}, 1.0),
        ({"ack_wait": 0.001}, 0.05),
        ({}, 10.0),
    ],
)
def test_how_often_is_looked(config: dict[str, Any], seconds: float) -> None:
    assert interval_of(ConsumerConfig(**config)) == pytest.approx(seconds)
