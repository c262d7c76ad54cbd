"""The prototype of one writer for all does the work that it is measured by, and answers with the engine's errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

import pelton
from benchmarks.prototypes.one_writer.__main__ import parts_of
from benchmarks.prototypes.one_writer.children import Part
from benchmarks.prototypes.one_writer.remote import AskingBackend
from benchmarks.prototypes.one_writer.serving import WritesForAll
from pelton.api import Backend
from pelton.runtime import system_runtime


@asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[pelton.Jet]:
    async with asyncio.timeout(30), pelton.open("memory:") as written:
        serving = WritesForAll(written.backend)
        await serving.listen(str(folder / "writer"))
        backend = AskingBackend(str(folder / "writer"))
        try:
            yield pelton.Jet(cast(Backend, backend), system_runtime())
        finally:
            await backend.close()
            await serving.close()


async def test_publishes_in_flight_are_answered_each_with_its_place(tmp_path: Path) -> None:
    async with asking(tmp_path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        acks = await asyncio.gather(*(jet.publish(f"s.{number}", b"x") for number in range(40)))
        assert [ack.seq for ack in acks] == [*range(1, 41)]
        with pytest.raises(pelton.NoStreamForSubjectError):
            await jet.publish("nobody", b"x")


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_worker_drains_a_queue_that_another_process_writes(tmp_path: Path, *, exclusive: bool) -> None:
    async with asking(tmp_path) as jet:
        queue = await jet.queue("q", exclusive=exclusive)
        ran: list[int] = []

        @queue.job(name="noop")
        async def noop(number: int) -> None:
            ran.append(number)

        await noop.enqueue_many([(number,) for number in range(60)], keys=[f"k{n % 7}" for n in range(60)])
        await queue.work(until_empty=True, handle_signals=False)
        assert sorted(ran) == [*range(60)]
        assert [number for number in ran if number % 7 == 3] == [*range(3, 60, 7)] or not exclusive


def test_a_form_has_one_writer_or_none() -> None:
    part = Part("p", "alone", "work")
    roles = {form: [each.role for each in parts_of(form, 3, part)] for form in ("each", "one", "thread", "apart")}
    assert roles == {
        "each": ["alone"] * 3,
        "one": ["writer", "asker", "asker"],
        "thread": ["threaded", "asker", "asker"],
        "apart": ["writer", "asker", "asker", "asker"],
    }
