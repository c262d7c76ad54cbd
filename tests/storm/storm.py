"""The storm: processes of every kind on one store, killed and paused while it is purged, backed up and given new keys.

Failures come after a number of reports of the actors, drawn from a seeded generator, as in the soak; the machine
determines what a process does between two reports, and how far it is when it is killed. Each records what it is about
to do and what was acknowledged to it. When all have ended, the store is drained, and the journals are checked against
it: ``checks.py``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

import pelton
from tests.crash.queue.test_crash import effects_of
from tests.crash.queue.worker import Log, register
from tests.journal import entries
from tests.kit.clocks import PassingClock, runtime_with
from tests.kit.judge.history import JobEvent
from tests.kit.linear import Op, check_history
from tests.soak.ending import FAR_S, drain, lies
from tests.soak.record import Record, read
from tests.soak.run import Result, count_steps
from tests.soak.troupe import Actor, Troupe
from tests.stopping import stand_still
from tests.storage.processes import Child
from tests.storm import cast, cast_depot, inherited, plan
from tests.storm.cast_care import caretaker
from tests.storm.cast_keys import comparer, dispatcher, holder, mechanic
from tests.storm.checks import Found, History, contradictions
from tests.storm.checks_depot import DepotHistory
from tests.storm.notes import Note, Notes
from tests.storm.plan import Place

_ROLES: Final = (
    *[cast.publisher] * 2,
    cast.worker,
    cast.heir,
    cast.heir,
    cast.clerk,
    *[holder] * 3,
    comparer,
    comparer,
    dispatcher,
    *[mechanic] * 2,
    cast_depot.orderer,
    *[cast_depot.hand] * 2,
    cast_depot.forester,
    caretaker,
)
_TROUBLES: Final = 20
# Drawn for each failure. A process that is paused in the middle of a transaction blocks all the others: that is
# short. One that is paused for longer than leases last is paused outside of one.
_ACTS: Final = (*["kill"] * 12, *["stop"] * 4, *["sleep"] * 2, *["jump"] * 2, "renew", "verify")
# By how many seconds the machine's wall clock is ahead after a jump.
_AHEAD: Final = (0, 40, 86_400, -3600)
_DRAINED_WITHIN_S: Final = 120
_BEGINS: Final = (*inherited.VERSIONS, 0)
_SHORT_WORDS: Final = 20
_LONG_WORDS: Final = 300
_WORDS: Final = 40


class Storm:
    """One storm on its own store in ``folder``, new or of an old ``version``."""

    def __init__(self, folder: Path, seed: int | str, *, encrypted: bool, version: int) -> None:
        self._folder = folder
        self._version = version
        self._random = Random(seed)
        self._born = 0
        self._slept: set[int] = set()
        self._place = Place(folder / "store.pelton", folder, encrypted)
        (folder / "backups").mkdir()
        self._notes = Notes(folder, "storm")
        self._clock = self._place.clock
        self.result = Result()

    async def run(self, troubles: int) -> Result:
        """Cause that many failures; then drain the store, and check it."""
        await plan.make_store(self._place, self._version)
        async with self._place.open() as (jet, _):
            await cast_depot.make_depot(jet)
        troupe = Troupe(self._start, _ROLES, self.result.counts)
        try:
            for _ in range(troubles):
                if len(self.result.problems) + len(troupe.deaths) > _TROUBLES:
                    break
                self._trouble(troupe)
            troupe.finish()
        finally:
            troupe.close()
        self.result.problems += troupe.deaths
        self._verify()
        found = await self._end()
        self._verify()
        self._check(found)
        await self._check_backups()
        return self.result

    # --- while it lasts

    def _start(self, role: Any) -> Child:
        self._born += 1
        return Child(role, self._place, f"{role.__name__}{self._born}", self._random.randrange(1 << 30))

    def _trouble(self, troupe: Troupe) -> None:
        # Some are killed while they still open the store.
        troupe.hear(self._random.randrange(0, _WORDS))
        actor = self._random.choice(troupe.actors)
        act = self._random.choice(_ACTS)
        if act == "verify":
            self._verify()
        elif not actor.sleeping:
            getattr(self, f"_{act}")(troupe, actor)

    def _kill(self, troupe: Troupe, actor: Actor) -> None:
        # Up to some milliseconds into its next step.
        actor.child.pipe.poll(self._random.uniform(0, 0.004))
        pid = actor.child.process.pid or 0
        troupe.kill(actor)
        self._notes.say("killed", number=pid)

    def _stop(self, troupe: Troupe, actor: Actor) -> None:
        troupe.stop(actor, self._random.randrange(1, _SHORT_WORDS))

    def _sleep(self, troupe: Troupe, actor: Actor) -> None:
        if any(other.sleeping for other in troupe.actors):
            # One may hold the lock that is waited for here.
            return
        pid = actor.child.process.pid
        stand_still(pid, self._place.path, lambda: self._place.keys)
        self._slept.add(pid or 0)
        self._notes.say("slept", number=pid or 0)
        self.result.counts["long stops"] += 1
        troupe.asleep(actor, self._random.randrange(_SHORT_WORDS, _LONG_WORDS))

    def _renew(self, troupe: Troupe, actor: Actor) -> None:
        troupe.renew(actor)

    def _jump(self, troupe: Troupe, actor: Actor) -> None:
        ahead = self._random.choice(_AHEAD)
        self.result.counts["jumps of the clock"] += 1
        # Before and after, for those that can't know which it was.
        self._notes.say("jumped", name=str(ahead))
        self._clock.jump_to(ahead * 10**9)
        self._notes.say("jumped", name=str(ahead))

    def _verify(self) -> None:
        self.result.counts["verified"] += 1
        self.result.problems += [f"verify: {problem}" for problem in self._place.verify()]

    # --- at the end

    async def _end(self) -> Found:
        """Process what is left, and return the contents of the store."""
        clock = PassingClock()
        async with self._place.open(runtime=runtime_with(clock)) as (jet, _):
            queue = await jet.queue(plan.QUEUE)
            register(queue, Log(str(self._folder / "jobs")))
            await queue.work(concurrency=8, until_empty=True, handle_signals=False)
            await self._work_off(jet)
            clock.let_pass(FAR_S)
            for stream, name in plan.REMADE:
                with suppress(pelton.ConsumerNotFoundError):
                    await (await jet.stream(stream)).delete_consumer(name)
                await (await jet.stream(stream)).create_consumer(durable_name=name)
            stored = await lies(jet, ("anew", "again"))
            consumers = (*plan.KEPT, plan.BILLS, *plan.REMADE)
            self.result.problems += await drain(jet, Record(self._folder, "drain"), clock, consumers)
            async with jet.transaction() as tx:
                ledger = dict(await tx.sql("SELECT name, taken FROM ledger"))
            rest = [name for name in plan.STREAMS if name not in stored]
            return Found({**stored, **await lies(jet, rest)}, ledger, await effects_of(jet))

    async def _work_off(self, jet: pelton.Jet) -> None:
        """Run the jobs that are left, also those of an old store; nothing may wait for longer than it was asked to."""
        queues = [
            await jet.queue(cast_depot.DEPOT, jobs=cast_depot.jobs),
            await jet.queue(cast_depot.FORKS, jobs=cast_depot.forking),
        ]
        queues += [await inherited.opened(jet, name) for name in inherited.queues_in(self._folder)]
        for queue in queues:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAINED_WITHIN_S), cast_depot.marking(self._folder, queue):
                    # At least once: a worker that was killed may have left a flow to be carried on, with no job yet.
                    await queue.work(concurrency=8, until_empty=True, handle_signals=False)
                    while (await queue.counts()).unfinished:
                        await queue.work(concurrency=8, until_empty=True, handle_signals=False)
            left = [f"{job.id} {job.job} {job.state}" async for job in queue.jobs()]
            self.result.problems += [f"{queue.name}: {one} is left after {_DRAINED_WITHIN_S} s" for one in left]
        ended = {queue.name: await cast_depot.outcomes(queue) for queue in queues}
        self.result.problems += await inherited.left(jet, self._version)
        self.result.problems += inherited.contradictions(self._version, ended)
        events = [msgspec.json.decode(line, type=cast_depot.DepotEvent) for line in _lines(self._folder / "depot")]
        history = DepotHistory(list(entries(self._folder, "notes", Note)), events, ended)
        self.result.problems += history.contradictions()
        counts = self.result.counts
        counts["jobs begun"] = sum(event.kind == "begins" for event in events)
        counts["jobs seen held"] = sum(note.name.count("=held") for note in history.notes if note.kind == "seen")
        counts["errors of dead workers"] = sum(
            error.error.startswith("the worker died") for of in ended.values() for one in of for error in one.errors
        )

    def _check(self, found: Found) -> None:
        steps = list(read(self._folder))
        notes = list(entries(self._folder, "notes", Note))
        jobs = [msgspec.json.decode(line, type=JobEvent) for line in _lines(self._folder / "jobs")]
        counts = self.result.counts
        count_steps(counts, steps)
        counts += Counter(note.kind for note in notes if note.kind != "holds")
        counts["terms and locks"] = len({(n.what, n.number) for n in notes if n.kind == "holds"})
        counts["starts of jobs"] = sum(event.kind == "start" for event in jobs)
        paused = {event.worker for event in jobs if event.worker and int(event.worker.split("-")[0]) in self._slept}
        history = History(steps, notes, jobs, paused)
        self.result.problems += contradictions(history, found)
        ops = {(op.client, op.called): op for op in entries(self._folder, "ops", Op)}
        counts["bucket operations"] = len(ops)
        self.result.problems += [f"bucket: {broken}" for broken in check_history(ops.values())]

    async def _check_backups(self) -> None:
        """A backup holds everything that was acknowledged before it was started."""
        done = {note.name for note in entries(self._folder, "notes", Note) if note.kind == "backed"}
        begun = {note.name: note.at for note in entries(self._folder, "notes", Note) if note.kind == "backing"}
        steps = [step for step in read(self._folder) if step.stream == "log" and step.kind == "published"]
        for path in sorted((self._folder / "backups").glob("*.pelton")):
            if path.name not in done:
                continue
            self.result.counts["backups checked"] += 1
            self.result.problems += [f"backup {path.name}: {problem}" for problem in self._place.verify(path)]
            async with Place(path, self._folder, self._place.encrypted).open() as (jet, _):
                kept = (await lies(jet, ["log"]))["log"]
            self.result.problems += [
                f"backup {path.name}: {step.name} lacks, or lies elsewhere than at {step.seq}"
                for step in steps
                if step.at < begun[path.name] and kept.get(step.seq) != step.name
            ]


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a journal that are whole."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


async def storms(folder: Path, seed: int, troubles: int, each: int) -> Result:
    """Run storms of up to ``each`` failures, every other one on an encrypted store; return the actions of all.

    They begin on stores of all schemas, one after the other, and then on a new one.
    """
    total = Result()
    for number, begun in enumerate(range(0, troubles, each)):
        place = folder / f"storm-{number}"
        place.mkdir()
        version = _BEGINS[number % len(_BEGINS)]
        storm = Storm(place, f"{seed}-{number}", encrypted=(number + number // len(_BEGINS)) % 2 == 0, version=version)
        result = await storm.run(min(each, troubles - begun))
        total.counts += result.counts
        total.problems += [f"storm {seed}-{number}: {problem}" for problem in result.problems]
        await asyncio.sleep(0)
    return total
