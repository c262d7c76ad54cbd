"""Power is lost at any write of durable functions: each step once, each signal once, and undone is what was done.

The example runs on a disk that records it, on a clock of its own, with a client that enqueues its jobs, answers and
cancels. From each moment an image is made of what a power loss may have left, and the same program goes on with that.
The judge reads what the program has written down: what it did before the moment and after it is what it does
undisturbed, but for the one thing that it was doing.
"""

from __future__ import annotations

import ast
import functools
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pelton
from pelton.connect import Jet
from pelton.engine import Engine
from pelton.engine.connections import EngineSettings
from pelton.queue import JobHandle, Queue
from pelton.testing import ManualRuntime, manual_runtime
from tests.kit.power import PowerMark, RecordingDisk, write_image

EXAMPLES = Path(__file__).parents[2] / "examples"
LEASE_S = 31
TURNS = 40
IMAGES = pytest.mark.parametrize("images", [pytest.param(4, id="short"), pytest.param(0, id="long")])
Say = Callable[[str], None]


class Program:
    """An example without its ``main``; what it does outside of the store is said."""

    effects: tuple[str, ...] = ()
    # How many jobs of each name end, by the history.
    ended: tuple[tuple[str, int], ...]
    expected: tuple[str, ...]

    def __init__(self, name: str, say: Say) -> None:
        tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
        self.names: dict[str, Any] = {"__name__": name}
        # Without its ``main()``, and without the line that keeps the log short.
        body = [line for line in tree.body[:-1] if "setLevel" not in ast.unparse(line)]
        exec(compile(ast.Module(body, []), name, "exec"), self.names)
        self.say = say
        for effect in self.effects:
            self.names[effect] = self._recorded(effect, self.names[effect])
        self.prepare()

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            self.say(self.effect(name, *args))
            return function(*args)

        return call

    def prepare(self) -> None:
        """Change what would take too long."""

    def effect(self, name: str, *args: Any) -> str:
        return " ".join(map(str, (name, *args)))

    async def enqueue(self, queue: Queue) -> JobHandle[Any]:
        raise NotImplementedError

    async def react(self, job: JobHandle[Any], said: Counter[str]) -> None:
        """Do what a client does next, if it is not said that it is done."""

    async def once(self, said: Counter[str], what: str, do: Callable[[], Awaitable[object]]) -> None:
        if not said[f"told {what}"]:
            await do()
            self.say(f"told {what}")


class Approval(Program):
    effects = ("ask",)
    ended = (("fulfil", 1), ("charge", 1), ("pack", 3))
    expected = ("ask ann asked", "ask ann reminded", "ask bob asked")

    async def enqueue(self, queue: Queue) -> JobHandle[Any]:
        return await queue.enqueue(self.names["fulfil"], 7, "ann")

    async def react(self, job: JobHandle[Any], said: Counter[str]) -> None:
        if said["ask bob asked"]:
            await self.once(said, "answer", lambda: job.send("answer", "bob says yes", msg_id="1"))


class Saga(Program):
    effects = ("note",)
    ended = (("buy", 1),)
    expected = ("note charge 3", "note reserve 3", "note release 3", "note refund 3")
    order = 3

    async def enqueue(self, queue: Queue) -> JobHandle[Any]:
        return await queue.enqueue(self.names["buy"], self.order)

    async def react(self, job: JobHandle[Any], said: Counter[str]) -> None:
        if self.order == 3 and (await job.info()).state == "scheduled":
            await self.once(said, "cancelled", job.cancel)


class FailingSaga(Saga):
    expected = ("note charge 2", "note reserve 2", "note release 2", "note refund 2")
    order = 2


class Agent(Program):
    effects = ("model", "price", "pay")
    ended = (("agent", 1),)
    expected = ("model 1", "price", "model 2", "model 3", "price", "model 4", "pay", "model 5")

    def prepare(self) -> None:
        self.names["TOOLS"].update(price=self.names["price"], pay=self.names["pay"])

    def effect(self, name: str, *args: Any) -> str:
        return f"model {len(args[0])}" if name == "model" else name

    async def enqueue(self, queue: Queue) -> JobHandle[Any]:
        return await queue.enqueue(self.names["agent"], "buy a lathe")

    async def react(self, job: JobHandle[Any], said: Counter[str]) -> None:
        if (await job.info()).state == "waiting":
            for number, models in ((1, 2), (2, 4)):
                if said[f"model {models}"] and (number == 2 or not said["model 4"]):
                    send = functools.partial(job.send, "allowed", number == 2, msg_id=f"{number}")
                    await self.once(said, f"{number}", send)


class FanOut(Program):
    ended = (("album", 1), ("shrink", 12))
    expected = ()

    def prepare(self) -> None:
        self.names["AT_ONCE"] = 5

    async def enqueue(self, queue: Queue) -> JobHandle[Any]:
        return await queue.enqueue(self.names["album"], 12)


class Subscription(Program):
    effects = ("charge",)
    ended = (("subscribe", 1),)
    expected = ("charge ann 1", "charge ann 2", "charge ann 3")

    async def enqueue(self, queue: Queue) -> JobHandle[Any]:
        return await queue.enqueue(self.names["subscribe"], "ann")

    async def react(self, job: JobHandle[Any], said: Counter[str]) -> None:
        if said["charge ann 3"]:
            await self.once(said, "cancel", lambda: job.send("cancel", "too expensive", msg_id="1"))


PROGRAMS: dict[str, type[Program]] = {
    "approval": Approval, "saga": Saga, "failing saga": FailingSaga, "agent": Agent, "fan_out": FanOut,
    "subscription": Subscription,
}  # fmt: skip


async def drive(jet: Jet, program: Program, said: Counter[str], runtime: ManualRuntime) -> Any:
    """Work, and do what a client does, until the job has ended; return its outcome."""
    queue = await jet.queue("shop", jobs=program.names["jobs"])
    known = next((one.split()[-1] for one in said if one.startswith("told job ")), "")
    if not known:
        # Whoever does not know whether it was enqueued looks.
        known = next(iter([info.id async for info in queue.jobs()]), "") or (await program.enqueue(queue)).id
        program.say(f"told job {known}")
    job = queue.handle(known)
    for _ in range(TURNS):
        await queue.work(until_idle=True, handle_signals=False)
        if not (await queue.counts()).unfinished:
            break
        await program.react(job, said)
        runtime.clock.advance(LEASE_S)
    outcome = await job.outcome(timeout=1)
    history = Counter([(one.job, one.id) async for one in queue.history()])
    assert set(history.values()) == {1}
    assert Counter(name for name, _ in history) == dict(program.ended)
    return outcome.state, outcome.error, outcome.result


def done_in(said: list[str]) -> list[str]:
    return [one for one in said if not one.startswith("told ")]


def judge(before: list[str], after: list[str], expected: tuple[str, ...]) -> None:
    """All is done once, in order; what was being done when the power was lost may be done again."""
    done, again = done_in(before), done_in(after)
    assert tuple(done) == expected[: len(done)]
    assert tuple(again) in (expected[len(done) :], expected[max(len(done) - 1, 0) :]), f"{done}, then {again}"


@IMAGES
@pytest.mark.parametrize("name", PROGRAMS)
async def test_power_is_lost_at_any_write(name: str, images: int, tmp_path: Path) -> None:
    kind, example, random = PROGRAMS[name], name.rpartition(" ")[2], Random(7)
    disk, runtime, said = RecordingDisk(f"durable-{name}-{images}"), manual_runtime(), list[str]()
    counted = Counter[str]()

    def say(text: str) -> None:
        disk.mark(text)
        said.append(text)
        counted[text] += 1

    (tmp_path / "live").mkdir()
    settings = EngineSettings(
        str(tmp_path / "live" / "a.pelton"), vfs=disk.vfs, sync_file=disk.sync_file, write_file=disk.write_file
    )
    async with Jet(Engine(settings, runtime), runtime) as jet:
        outcome = await drive(jet, kind(example, say), counted, runtime)
    disk.close()
    judge([], said, kind.expected)
    moments = [at for at, event in enumerate(disk.events) if not isinstance(event, PowerMark)]
    for number, moment in enumerate(random.sample(moments, images) if images else moments):
        (folder := tmp_path / f"image-{number}").mkdir()
        write_image(folder, disk.image(moment, random))
        before = [event.what for event in disk.events[:moment] if isinstance(event, PowerMark)]
        after, known = list[str](), Counter(before)

        def go_on(text: str, after: list[str] = after, known: Counter[str] = known) -> None:
            after.append(text)
            known[text] += 1

        async with pelton.open(folder / "a.pelton", sync="off", runtime=runtime) as again:
            assert await drive(again, kind(example, go_on), known, runtime) == outcome, f"power lost at {moment}"
        judge(before, after, kind.expected)
        shutil.rmtree(folder)
