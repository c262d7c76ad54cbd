"""The pages of queues and their jobs, which only show. Each asks for a bounded number of things, in a bounded time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from pelton import observe
from pelton.connect import Jet
from pelton.dashboard.history_charts import SPANS, queue_charts
from pelton.dashboard.pictures import ROWS, Snapshots, worker_rows
from pelton.dashboard.view import View
from pelton.observe.queues import run_times
from pelton.queue import JobInfo, JobState, Outcome
from pelton.queue.backing.trend import MINUTE, trend_points
from pelton.runtime import Deadline

T = TypeVar("T")
_FEW: Final = 25
_SAMPLE: Final = 100
_UNDERWAY: Final[tuple[JobState, ...]] = ("running", "retrying", "held")
_MOST_NODES: Final = 500
_FLOWS: Final = 50
_SEARCH_S: Final = 1.0
_LEAST_SEARCH_S: Final = 0.02


class Group(NamedTuple):
    """Jobs of one name, or of one key, among those that ended last; ``median`` of their run times in seconds."""

    name: str
    ended: int
    failed: int
    median: float


class QueuePages:
    """The handlers of one dashboard's queues."""

    def __init__(self, jet: Jet, view: View, snapshots: Snapshots) -> None:
        self._jet = jet
        self._view = view
        self._snapshots = snapshots

    async def queue(self, request: Request) -> Response:
        """One queue: states, times, what runs, what failed."""
        jet, name = self._jet, request.path_params["name"]
        queue = await observe.queue_summary(jet, name)
        picture = await self._snapshots.latest()
        # What is asked now is newer than the picture.
        outcomes = await observe.ended_jobs(jet, name, _SAMPLE)
        now, span = jet.runtime.clock.now(), SPANS.get(request.query_params.get("span", ""), SPANS["hour"])
        points = await trend_points(jet, name, now - (span.minutes + span.step) * MINUTE)
        return self._page(
            request,
            "queue.html",
            queue=queue,
            live=picture.texts,
            span=span,
            charts=queue_charts(points, span, now),
            underway=[
                job
                for state in _UNDERWAY
                for job in (await observe.list_jobs(jet, name, observe.JobSelection(state=state))).jobs
            ],
            by_name=groups([(one.job, one) for one in outcomes]),
            by_key=groups([(one.key, one) for one in outcomes if one.key]),
            ended=outcomes[::-1][:_FEW],
            dead=await _first_of(observe.dead_letters(jet, name)),
            workers=worker_rows(await observe.worker_summaries(jet, name), jet.runtime.clock.now()),
            tenants=await observe.tenant_counts(jet, name, _FEW),
            limits=await observe.limit_summaries(jet, name),
            schedules=[(name, one) for one in (await observe.job_schedules(jet, name))[:ROWS]],
            flows=[(name, one) for one in await observe.flow_summaries(jet, name, limit=5, within=_SEARCH_S / 4)],
        )

    def _page(self, request: Request, template: str, **values: Any) -> Response:
        return self._view.page(request, template, now=self._jet.runtime.clock.now(), **values)

    async def job(self, request: Request) -> Response:
        """One job: state, arguments, the errors of its attempts, its traceback or its result."""
        name, job_id = request.path_params["name"], request.path_params["job_id"]
        details = await observe.job_with_details(self._jet, name, job_id)
        return self._page(request, "job.html", queue=name, details=details, job=details.job)

    async def keys(self, request: Request) -> Response:
        """The keys with most jobs that have not ended, or the jobs of one key; it looks for a tenth of a second."""
        name, key = request.path_params["name"], request.query_params.get("key", "")
        begin = _number(request.query_params.get("from", ""))
        if key:
            jobs = await observe.jobs_of_key(self._jet, name, key, begin=begin, limit=_FEW)
            return self._page(request, "key.html", queue=name, found=jobs, few=_FEW)
        return self._page(request, "keys.html", queue=name, counts=await observe.key_counts(self._jet, name))

    # --- all queues

    async def _names(self, request: Request) -> tuple[list[str], str]:
        """Return the names of the queues, and the one that the request chooses; empty for all."""
        names = (await self._jet.queue_names())[:ROWS]
        chosen = request.query_params.get("queue", "")
        return names, chosen if chosen in names else ""

    async def jobs(self, request: Request) -> Response:
        """A search for jobs by id, key, name or argument; it ends after a second and says where."""
        names, chosen = await self._names(request)
        wanted, begin = request.query_params.get("q", "").strip(), _number(request.query_params.get("from", ""))
        searched = [chosen] if chosen else names
        deadline = Deadline(self._jet.runtime.clock, _SEARCH_S)
        found: list[tuple[str, JobInfo]] = []
        unfinished: list[observe.JobSearch] = []
        for number, queue in enumerate(searched):
            if not wanted:
                found += [(queue, job) for job in await _first_of(observe.unfinished_jobs(self._jet, queue))]
                continue
            share = max((deadline.left or 0.0) / (len(searched) - number), _LEAST_SEARCH_S)
            part = await observe.find_jobs(
                self._jet, queue, wanted, begin=begin if chosen else 0, limit=_FEW, within=share
            )
            found += [(queue, job) for job in part.jobs]
            if part.next_begin:
                unfinished.append(part)
        return self._page(
            request,
            "jobs.html",
            found=found[: _FEW * len(searched)],
            q=wanted,
            queue=chosen,
            queues=names,
            unfinished=unfinished,
            few=_FEW,
        )

    async def flows(self, request: Request) -> Response:
        """The flows of a queue, or of all, those that began last first."""
        names, chosen = await self._names(request)
        deadline = Deadline(self._jet.runtime.clock, _SEARCH_S)
        found = []
        for name in [chosen] if chosen else names:
            left = max(deadline.left or 0.0, _LEAST_SEARCH_S)
            found += [(name, one) for one in await observe.flow_summaries(self._jet, name, limit=_FLOWS, within=left)]
        found.sort(key=lambda entry: -entry[1].enqueued_at)
        return self._page(request, "flows.html", flows=found[:_FLOWS], few=_FLOWS, queue=chosen, queues=names)

    async def flow(self, request: Request) -> Response:
        """One flow and its jobs: those that have not completed first, if they are very many."""
        name = request.path_params["name"]
        flow = await observe.flow_details(self._jet, name, request.path_params["flow_id"])
        nodes = flow.nodes
        if len(nodes) > _MOST_NODES:
            open_first = sorted(nodes, key=lambda node: node.state == "completed")[:_MOST_NODES]
            nodes = tuple(sorted(open_first, key=lambda node: node.number))
        counts: dict[str, int] = {}
        for node in flow.nodes:
            counts[node.state] = counts.get(node.state, 0) + 1
        return self._page(request, "flow.html", queue=name, flow=flow, nodes=nodes, counts=counts)

    async def schedules(self, request: Request) -> Response:
        """The schedules of all queues."""
        names, _ = await self._names(request)
        found = [(name, one) for name in names for one in await observe.job_schedules(self._jet, name)]
        return self._page(request, "schedules.html", schedules=found[:ROWS], total=len(found))

    async def limits(self, request: Request) -> Response:
        """The limits of all queues, and how much of each is used."""
        names, _ = await self._names(request)
        found = [one for name in names for one in await observe.limit_summaries(self._jet, name)]
        return self._page(request, "limits.html", limits=found[:ROWS], total=len(found))


def groups(ended: Sequence[tuple[str, Outcome]], most: int = 10) -> list[Group]:
    """Return groups of jobs by name or key; the group with the most ended jobs first."""
    found: dict[str, list[Outcome]] = {}
    for name, outcome in ended:
        found.setdefault(name, []).append(outcome)
    ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [
        Group(
            name,
            len(ones),
            sum(one.state == "failed" for one in ones),
            run_times(ones).median,
        )
        for name, ones in ordered[:most]
    ]


async def _first_of(entries: AsyncGenerator[T]) -> list[T]:
    """Return the first few, and end the iteration."""
    found: list[T] = []
    async with aclosing(entries):
        async for entry in entries:
            found.append(entry)
            if len(found) == _FEW:
                break
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
