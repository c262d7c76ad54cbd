"""Random programs on two queues: what they do, and what they record of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pelton
from pelton import Jet
from pelton.queue import FlowHandle, FlowNode, JobHandle, JobLimit, Queue, Rate
from pelton.queue.model.options import JobOptions
from pelton.queue.model.states import ENDINGS
from tests.kit.judge.queue_history import HistoryEvent, HistoryEventKind, PlannedNode
from tests.queue.programs.cast import LEASE_S, QUEUES, Note, register

KEYS = ("", "a", "b.c", "d")
TENANTS = ("", "t", "u v", "w")
UNIQUES = ("x", "y")


async def opened(jet: Jet, exclusive: bool, note: Note, **options: Any) -> list[Queue]:
    queues = [await jet.queue(name, exclusive=exclusive, lease=LEASE_S, **options) for name in QUEUES]
    for queue in queues:
        register(queue, note)
    return queues


class Program:
    """Acts at random on queues; several openings of each may be given, one is drawn for each action."""

    def __init__(self, openings: list[list[Queue]], chance: Random, note: Note, *, drains: bool = False) -> None:
        self._openings = openings
        self._chance = chance
        self._note = note
        self._known: list[tuple[str, str]] = []
        self._number = 0
        self._paused: dict[tuple[int, str, str], None] = {}
        self._limited: dict[tuple[int, str, bool], None] = {}
        self._flows: list[tuple[Queue, FlowHandle]] = []
        self._acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (30, self._enqueue),
            (10, self._enqueue_unique),
            (6, self._enqueue_together),
            (6, self._cancel),
            (4, self._pause),
            (6, self._resume),
            (6, self._redrive),
            (2, self._purge),
            (4, self._move),
            (5, self._limit),
            (3, self._unlimit),
            (4, self._flow),
            (2, self._cancel_flow),
            (3, self._weigh),
            (2, self._crowd),
            (drains, self._drain),
        ]

    async def act(self) -> None:
        """Do one thing."""
        weights = [weight for weight, _ in self._acts]
        [(_, act)] = self._chance.choices(self._acts, weights)
        await act()

    async def finish(self) -> None:
        """Resume all that is paused, and take limits away."""
        while self._paused:
            await self._resume()
        while self._limited:
            await self._unlimit()

    async def hurry(self, number: int, keys: Sequence[str] = ("",)) -> None:
        """Enqueue jobs of all priorities in the first queue, each with one of some keys."""
        queue = self._openings[0][0]
        ranks = self._chance.choices(range(4), (3, 1, 2, 6), k=number)
        await self._enqueue_all(queue, [{"priority": rank, "key": self._chance.choice(keys)} for rank in ranks])

    async def _enqueue_all(self, queue: Queue, options: list[dict[str, Any]]) -> None:
        calls = [queue._enqueuer.call_of("hurry", (), {}, JobOptions(**one)) for one in options]
        for one, handle in zip(options, await queue.enqueue_many(calls), strict=True):
            self._accepted(queue, one, handle)

    async def crowd(self, number: int) -> None:
        """Enqueue jobs of tenants in the first queue: of one, many."""
        tenants = self._chance.choices(TENANTS, (2, 6, 2, 1), k=number)
        await self._enqueue_all(self._openings[0][0], [{"tenant": tenant} for tenant in tenants])

    async def weigh(self, tenant: str, weight: int) -> None:
        """Give a tenant a weight in the first queue."""
        queue = self._openings[0][0]
        self._tell("weighing", queue, tenant=tenant, weight=weight)
        async with self._asking(queue):
            await queue.weigh(tenant, weight)
            self._tell("weighed", queue, tenant=tenant, weight=weight)

    async def unfinished_flows(self) -> list[str]:
        """Return the flows that have not ended: between two of their jobs, none may be unfinished."""
        running = [(handle.id, await queue.flow(handle.id).status()) for queue, handle in self._flows]
        return [flow for flow, status in running if status.state == "running"]

    async def tell_the_end(self) -> None:
        """Record what the queues say when nothing runs any more."""
        for queue in self._openings[0]:
            async for outcome in queue.history():
                if outcome.error.endswith("not moved after all"):
                    # On a cluster, a move has two steps: this one was taken back.
                    continue
                # Ids of the jobs of flows begin so.
                flow = "a flow" if outcome.id.startswith("f") else ""
                result = bytes(outcome.result).decode() if outcome.state == "completed" else ""
                self._tell("outcome", queue, outcome.id, state=outcome.state, value=result, flow=flow)
            async for letter in queue.dead_letters():
                self._tell("letter", queue, letter.outcome.id)
            async for info in queue.jobs():
                self._tell("unfinished", queue, info.id, state=info.state)
        for queue, handle in self._flows:
            status = await queue.flow(handle.id).status()
            for node in status.nodes:
                by = -1 if node.added_by is None else node.added_by
                self._tell("node", queue, node.id, state=node.state, flow=handle.id, node=node.number, added_by=by)
            self._tell("flow ended", queue, state=status.state, flow=handle.id)

    # --- what it does

    def _draw(self) -> Queue:
        # Mostly the first queue.
        return self._chance.choice(self._openings)[self._chance.random() < 0.2]

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"key": self._chance.choice(KEYS)}
        if self._chance.random() < 0.25:
            options["delay"] = self._chance.uniform(0.1, 3.0)
        if self._chance.random() < 0.1:
            options["ttl"] = self._chance.uniform(0.1, 3.0)
        if self._chance.random() < 0.2:
            options["priority"] = self._chance.randrange(1, 4)
        if self._chance.random() < 0.3 and not (options["key"] and self._openings[0][0].exclusive):
            options["tenant"] = self._chance.choice(TENANTS[1:])
        return options

    def _job(self) -> tuple[str, int]:
        self._number += 1
        return self._chance.choice(("wash", "paint")), self._chance.randrange(1, 1000)

    async def _enqueue(self) -> None:
        queue, options = self._draw(), self._options()
        if self._chance.random() < 0.15:
            options["idempotency_key"] = f"{self._number // 2}"
        async with self._asking(queue):
            self._accepted(queue, options, await queue.options(**options).enqueue(*self._job()))

    async def _enqueue_unique(self) -> None:
        queue, options = self._draw(), self._options()
        name = self._chance.choice(UNIQUES)
        options["unique" if self._chance.random() < 0.7 else "id"] = name
        if (how := self._chance.random()) < 0.2:
            options["unique_for"] = 1
        elif how < 0.5 and options.keys() >= {"unique", "delay"}:
            options["replace"] = True
        elif how > 0.8:
            options |= {"unique": "until started", "unique_until": "started"}
            options.pop("id", None)
        async with self._asking(queue):
            self._accepted(queue, options, await queue.options(**options).enqueue(*self._job()))

    async def _enqueue_together(self) -> None:
        queue = self._draw()
        if not hasattr(queue.jet, "transaction") or not queue.jet.backend.planning.atomic_batches:
            return await self._enqueue()
        accepted: list[tuple[dict[str, Any], JobHandle[Any]]] = []
        async with queue.jet.transaction() as tx:
            for _ in range(self._chance.randrange(1, 4)):
                options = self._options()
                handle = await tx.queue(queue).options(**options).enqueue(*self._job())
                accepted.append((options, handle))
        for options, handle in accepted:
            self._accepted(queue, options, handle)
        return None

    async def _cancel(self) -> None:
        if (known := self._some()) is None:
            return
        queue, job_id = known
        async with self._asking(queue, pelton.JobNotFoundError):
            await queue.cancel(job_id, reason="at random")
            state = (await queue.get(job_id)).state
            if state in ENDINGS:
                self._tell("ended", queue, job_id, state=state)

    async def _pause(self) -> None:
        place, key, name = self._chance.randrange(2), "", ""
        if (what := self._chance.random()) < 0.4:
            key = self._chance.choice(KEYS[1:])
        elif what < 0.7:
            name = self._chance.choice(("wash", "paint"))
        queue = self._openings[0][place]
        async with self._asking(queue):
            await queue.pause(key=key or None, job=name or None)
            self._paused[place, key, name] = None
            self._tell("paused", queue, key=key, name=name)

    async def _resume(self) -> None:
        if not self._paused:
            return
        place, key, name = self._chance.choice(list(self._paused))
        queue = self._chance.choice(self._openings)[place]
        self._tell("resumed", queue, key=key, name=name)
        async with self._asking(queue):
            await queue.resume(key=key or None, job=name or None)
            del self._paused[place, key, name]

    async def _drain(self) -> None:
        place = self._chance.randrange(2)
        queue = self._chance.choice(self._openings)[place]
        self._paused[place, "", ""] = None
        async with self._asking(queue, TimeoutError):
            await queue.drain(timeout=20)
            self._tell("drained", queue)

    async def _limit(self) -> None:
        place, per_key = self._chance.randrange(2), self._chance.random() < 0.5
        name = self._chance.choice(("", "wash", "paint"))
        concurrency, rate = self._chance.randrange(1, 4), None
        if self._chance.random() < 0.4:
            rate = Rate(self._chance.randrange(10, 40), burst=self._chance.randrange(1, 5))
        queue = self._chance.choice(self._openings)[place]
        self._limited[place, name, per_key] = None
        self._tell("unlimited", queue, limit=JobLimit(job=name, per_key=per_key))
        async with self._asking(queue):
            options: dict[str, Any] = {"rate": rate} if rate is not None else {"concurrency": concurrency}
            limit = await queue.limit(job=name or None, per_key=per_key, **options)
            self._tell("limited", queue, limit=limit)

    async def _unlimit(self) -> None:
        if not self._limited:
            return
        place, name, per_key = self._chance.choice(list(self._limited))
        queue = self._chance.choice(self._openings)[place]
        self._tell("unlimited", queue, limit=JobLimit(job=name, per_key=per_key))
        async with self._asking(queue):
            await queue.unlimit(job=name or None, per_key=per_key)
            del self._limited[place, name, per_key]

    async def _flow(self) -> None:
        queue = self._draw()
        async with self._asking(queue):
            flow, plan, nodes = await queue.new_flow(), list[PlannedNode](), list[FlowNode[Any]]()
            for place in range(self._chance.randrange(2, 6)):
                after = sorted(self._chance.sample(range(place), self._chance.randrange(min(place, 2) + 1)))
                adds = self._chance.randrange(1, 4) if self._chance.random() < 0.3 else 0
                planned = PlannedNode(tuple(after), runs_anyway=self._chance.random() < 0.2, adds=adds)
                options = {name: value for name, value in self._options().items() if name != "ttl"}
                how = flow.options(**options, on_failure="run" if planned.runs_anyway else "cancel")
                before = [nodes[one].result for one in after]
                number = self._chance.randrange(1, 1000)
                nodes.append(how.add("node", number=number, before=before, adds=adds))
                plan.append(planned)
            handle = await flow.enqueue()
            self._flows.append((queue, handle))
            self._tell("flow", queue, flow=flow.id, plan=tuple(plan))

    async def _cancel_flow(self) -> None:
        if not self._flows:
            return
        queue, handle = self._chance.choice(self._flows[-5:])
        async with self._asking(queue):
            if await handle.cancel(reason="at random"):
                self._tell("flow cancelled", queue, flow=handle.id)

    async def _redrive(self) -> None:
        queue = self._draw()
        letters = [letter async for letter in queue.dead_letters()]
        if not letters:
            return
        letter = self._chance.choice(letters)
        async with self._asking(queue, pelton.JobNotFoundError):
            handle = await queue.redrive(letter.outcome.id)
            self._tell("redriven", queue, letter.outcome.id)
            kept = {name: getattr(letter.envelope, name) for name in ("key", "priority", "tenant")}
            self._accepted(queue, kept, handle)

    async def _purge(self) -> None:
        queue = self._draw()
        async with self._asking(queue):
            if self._chance.random() < 0.5:
                await queue.purge(key=self._chance.choice(KEYS[1:]))
            else:
                await queue.purge(tenant=self._chance.choice(TENANTS[1:]))

    async def _move(self) -> None:
        if (known := self._some()) is None:
            return
        queue, job_id = known
        [other] = [one for queues in self._openings for one in queues if one.jet is queue.jet and one is not queue]
        async with self._asking(queue, pelton.JobNotMovedError, pelton.JobNotFoundError, pelton.ConfigError):
            info = await queue.get(job_id)
            moved = await queue.move(job_id, other)
            kept = {"key": info.key, "priority": info.priority, "tenant": info.tenant}
            # It may have failed since it was looked at, and wait there for its next attempt.
            self._accepted(other, {**kept, "delay": info.due or 1}, moved)

    async def _weigh(self) -> None:
        await self.weigh(self._chance.choice(TENANTS[1:]), self._chance.randrange(1, 5))

    async def _crowd(self) -> None:
        async with self._asking(self._openings[0][0]):
            await self.crowd(self._chance.randrange(1, 20))

    # --- what it records

    @contextlib.asynccontextmanager
    async def _asking(self, queue: Queue, *expected: type[BaseException]) -> AsyncIterator[None]:
        """Record what may or may not have been done, because servers did not answer."""
        try:
            yield
        except expected:
            pass
        except (pelton.ServerTimeoutError, pelton.ServerUnreachableError):
            self._tell("unsure", queue)

    def _some(self) -> tuple[Queue, str] | None:
        # Of those that are likely to be unfinished.
        if not self._known:
            return None
        queue, job_id = self._chance.choice(self._known[-30:])
        return self._chance.choice(self._openings)[QUEUES.index(queue)], job_id

    def _accepted(self, queue: Queue, options: dict[str, Any], handle: JobHandle[Any]) -> None:
        if handle.duplicate or (queue.name, handle.id) in self._known:
            return
        self._known.append((queue.name, handle.id))
        key, tenant = options.get("key", ""), options.get("tenant", "")
        where = (key if queue.exclusive else "") or tenant
        unique = next((f"{how} {options[how]} {where}" for how in ("unique", "id") if how in options), "")
        if "unique_until" in options:
            unique = ""
        state, priority = "scheduled" if options.get("delay") else "", options.get("priority", 0)
        facts = {"key": key, "unique": unique, "state": state, "priority": priority, "tenant": tenant}
        self._tell("enqueued", queue, handle.id, **facts)

    def _tell(self, kind: HistoryEventKind, queue: Queue, job: str = "", **facts: Any) -> None:
        self._note(HistoryEvent(kind=kind, queue=queue.name, at=time.monotonic_ns(), job=job, **facts))


async def until(reached: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Wait until something is so. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await reached():
            await asyncio.sleep(0.1)
