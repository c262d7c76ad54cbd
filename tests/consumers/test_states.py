"""Every line of the picture of a delivery's states, played on a store whose rows are looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

import pelton
from pelton.consumers.settle import AFTER_ACK, SETTLED, Answered
from pelton.jet import ack_of
from pelton.testing import ManualRuntime

DeliveryState = Answered | Literal["parked", "ready", "exhausted", "removed"]
Line = tuple[DeliveryState | None, str, DeliveryState]

LINES: tuple[Line, ...] = (
    (None, "pull or push", "delivered"),
    (None, "its subject is taken", "parked"),
    (None, "last of its subject at the start", "ready"),
    (None, "its subject waits for its turn", "ready"),
    ("parked", "its predecessor is settled", "ready"),
    ("ready", "pull or push", "delivered"),
    ("delivered", "ack", "acked"),
    ("delivered", "term", "termed"),
    ("delivered", "in_progress", "delivered"),
    ("delivered", "nak, ack wait or backoff passes", "due"),
    ("due", "pull or push", "delivered"),
    ("due", "in_progress", "delivered"),
    ("due", "ack", "acked"),
    ("due", "term", "termed"),
    ("due", "max_deliver reached", "exhausted"),
    ("parked", "removed from the stream", "removed"),
    ("ready", "removed from the stream", "removed"),
    ("delivered", "removed from the stream", "removed"),
    ("due", "removed from the stream", "removed"),
)


class Stage:
    """One exclusive consumer on an interest stream; ``seq`` is the message that is watched."""

    def __init__(self, jet: pelton.Jet, runtime: ManualRuntime) -> None:
        self.jet = jet
        self.runtime = runtime
        self.seq = 1
        self.consumer: pelton.Consumer
        self.stream: pelton.Stream
        self.taken: dict[int, pelton.Message] = {}
        self.ended: DeliveryState | None = None

    async def begin(self, **config: Any) -> None:
        self.stream = await self.jet.create_stream("s", subjects=["s.*"], retention="interest")
        keeper = await self.stream.create_consumer(durable_name="keeper")
        assert keeper.name == "keeper"
        fields = {"max_ack_pending_per_subject": 1, "ack_wait": 10, **config}
        await self.jet.publish_batch([("s.a", b"1"), ("s.a", b"2")])
        self.consumer = await self.stream.create_consumer(durable_name="c", **fields)

    async def pull(self) -> None:
        self.taken.update({m.metadata.stream_seq: m for m in await self.consumer.fetch(10, no_wait=True)})

    async def state(self) -> DeliveryState | None:
        """The message's state according to the rows."""
        info = await self.consumer.info()
        database: Any = self.consumer._backend._db  # type: ignore[attr-defined]  # the engine's, to look at its rows
        key = (info.name, self.seq)
        one = "FROM {} WHERE consumer=(SELECT id FROM consumers WHERE name=?) AND seq=?"
        due = database.value("SELECT due " + one.format("pending"), key)
        if due is not None:
            return "due" if int(due) <= self.runtime.clock.now() else "delivered"
        if database.value("SELECT 1 " + one.format("ready"), key) is not None:
            return "ready"
        if database.value("SELECT 1 " + one.format("claims") + " AND held=0", key) is not None:
            return "parked"
        if database.value("SELECT 1 " + one.format("exhausted"), key) is not None:
            return "exhausted"
        if self.seq > info.delivered.stream_seq:
            return None
        return "removed" if self.seq < (await self.stream.info()).state.first_seq else self.ended

    # --- coming to a state

    async def come_to(self, state: DeliveryState | None, event: str) -> None:
        if state == "ready":
            await self.begin(deliver_policy="last_per_subject", filter_subject=">")
            self.seq = 2
            return
        # A holder keeps a subject even if the message is gone, until its ack or the end of its ack wait.
        held = event != "removed from the stream" or state == "parked"
        await self.begin(max_deliver=1, max_ack_pending_per_subject=int(held))
        if state == "parked":
            self.seq = 2
        if state is not None:
            await self.pull()
        if state == "due":
            self.runtime.clock.advance(10)

    # --- what moves it

    async def move(self, event: str) -> None:
        if event in ("ack", "term", "in_progress"):
            self.ended = "termed" if event == "term" else "acked"
            await getattr(self.taken[self.seq], event)()
        elif event == "its predecessor is settled":
            await self.taken[1].ack()
        elif event == "removed from the stream":
            await self.stream.purge()
        elif event in ("pull or push", "max_deliver reached"):
            await self.pull()
        elif event == "nak, ack wait or backoff passes":
            await self.taken[self.seq].nak()
        else:
            assert event in OTHERWISE, event
            await OTHERWISE[event](self)


async def _taken(stage: Stage) -> None:
    stage.seq = 2
    await stage.pull()


async def _last(stage: Stage) -> None:
    await stage.stream.delete_consumer("c")
    await stage.stream.create_consumer(durable_name="c", deliver_policy="last_per_subject", filter_subject=">")
    stage.seq = 2


async def _waits(stage: Stage) -> None:
    await stage.jet.publish("s.b", b"3")
    stage.taken.update({m.metadata.stream_seq: m for m in await stage.consumer.fetch(1, no_wait=True)})
    stage.seq = 3


OTHERWISE: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "its subject is taken": _taken,
    "its subject waits for its turn": _waits,
    "last of its subject at the start": _last,
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[0]}-{line[1]}".replace(" ", "_"))
async def test_the_rows_go_as_the_picture_says(jet: pelton.Jet, runtime: ManualRuntime, line: Line) -> None:
    before, event, after = line
    stage = Stage(jet, runtime)
    await stage.come_to(before, event)
    if (before, event) == ("due", "pull or push"):
        await stage.stream.create_consumer(durable_name="c", ack_wait=10, max_ack_pending_per_subject=1, max_deliver=2)
    assert await stage.state() == before
    await stage.move(event)
    assert await stage.state() == after


def test_every_state_is_reached_and_the_settled_ones_are_left_by_nothing() -> None:
    reached = {after for _, _, after in LINES}
    assert {before for before, _, _ in LINES} == {None, "parked", "ready", "delivered", "due"}
    assert reached == {"parked", "ready", "delivered", "due", "acked", "termed", "exhausted", "removed"}


@pytest.mark.parametrize("kind", AFTER_ACK)
@pytest.mark.parametrize("late", [False, True])
async def test_an_ack_makes_of_its_delivery_what_the_table_says(
    jet: pelton.Jet, runtime: ManualRuntime, kind: pelton.AckKind, late: bool
) -> None:
    stage = Stage(jet, runtime)
    await stage.come_to("due" if late else "delivered", "ack")
    delivered = stage.taken[1].delivered
    stage.ended = "termed" if kind == "term" else "acked"
    info = await stage.consumer.info()
    assert await jet.backend.ack("s", "c", [ack_of(delivered, kind)]) == [None]
    assert await stage.state() == AFTER_ACK[kind]
    left = (await stage.consumer.info()).num_ack_pending
    assert left == info.num_ack_pending - (AFTER_ACK[kind] in SETTLED)
