"""A deadline that passes in the middle of a question: what is due is done once, in a transaction that is committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from msgspec.structs import replace

import pelton
from pelton.api.times import SECOND
from pelton.engine.salvage import recount
from pelton.testing import ManualClock, manual_runtime
from tests.storage.processes import Child

_DUE_S = 3600
_PLANNED = 200
Question = Callable[[pelton.Jet], Awaitable[object]]


class PassingClock(ManualClock):
    """A clock that stands just before a deadline, and passes it when it is looked at for the ``passes_at``-th time."""

    passes_at = -1
    looks = 0

    def now(self) -> int:
        self.looks += 1
        return super().now() + self._passed * SECOND

    def boottime(self) -> float:
        return super().boottime() + self._passed

    @property
    def _passed(self) -> int:
        return int(0 <= self.passes_at < self.looks)


async def _info(jet: pelton.Jet) -> object:
    return await (await jet.stream("s")).info()


async def _message(jet: pelton.Jet) -> object:
    return await (await jet.stream("s")).get_message(1)


async def _last(jet: pelton.Jet) -> object:
    return await (await jet.stream("s")).get_last_message("s.kept")


async def _account(jet: pelton.Jet) -> object:
    return await jet.account_info()


@pytest.mark.parametrize("question", [_info, _message, _last, _account])
async def test_what_is_due_in_the_middle_of_a_question_is_done_once(tmp_path: Path, question: Question) -> None:
    for passes_at in range(12):
        path = tmp_path / f"{passes_at}.pelton"
        clock = PassingClock()
        async with pelton.open(path, runtime=replace(manual_runtime(), clock=clock)) as jet:
            await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True, allow_msg_ttl=True)
            stream = await jet.stream("s")
            await stream.create_consumer(name="c", inactive_threshold=_DUE_S)
            await jet.publish("s.kept")
            await jet.publish("s.short", ttl=_DUE_S)
            await jet.schedule("s.plan", b"now", target="s.later", delay=_DUE_S)
            clock.advance(_DUE_S - 0.5)
            clock.looks, clock.passes_at = 0, passes_at
            await question(jet)
            clock.passes_at = 0
            info = await stream.info()
            assert (info.state.messages, info.state.last_seq) == (2, 4), "the first and the one of the schedule"
            assert (await jet.publish("s.next")).seq == 5
        assert recount(str(path)) == []


async def _plan_and_ask(pipe: Connection, path: Path, number: int) -> None:
    """Store schedules that are due at once, and ask questions all the while."""
    draw = random.Random(number)
    async with pelton.open(path) as jet:
        planning = set(range(_PLANNED))
        pipe.send("open")

        async def plan() -> None:
            while planning:
                delay = draw.choice([0.001, 0.003, 0.01])
                await jet.schedule(f"s.plan.{number}.{planning.pop()}", target=f"s.later.{number}", delay=delay)

        async def ask() -> None:
            while planning:
                await draw.choice([_info, _account])(jet)

        await asyncio.gather(*(plan() for _ in range(4)), *(ask() for _ in range(4)))
    pipe.send("done")


async def test_what_processes_plan_and_ask_about_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_msg_schedules=True)
        with ExitStack() as stack:
            children = [stack.enter_context(Child(_plan_and_ask, path, number)) for number in range(3)]
            for said in ["open", "done"]:
                assert {await asyncio.to_thread(child.hear) for child in children} == {said}
        stream = await jet.stream("s")
        consumer = await stream.create_consumer(filter_subject="s.plan.>")
        async with asyncio.timeout(60):
            while (await consumer.info()).num_pending:
                await asyncio.sleep(0)
        subjects = (await stream.info(subjects_filter="s.later.*")).state.subjects
        assert subjects == {f"s.later.{number}": _PLANNED for number in range(3)}
    assert recount(str(path)) == []
