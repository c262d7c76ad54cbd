"""The pages of queues and their jobs, which only show. Each asks for a bounded number of things, in a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from pelton import observe
from pelton.api.times import SECOND
from pelton.api.wording import visible_text
from pelton.connect import Jet
from pelton.dashboard.actions import JOB_STATES, selection_of
from pelton.dashboard.history_charts import SPANS, ChartSpan, queue_charts
from pelton.dashboard.pictures import ROWS, Snapshots, worker_rows
from pelton.dashboard.view import View
from pelton.drawing.charts import GraphNode, flow_graph
from pelton.jet.backlogs import MINUTE
from pelton.observe.queues import run_times
from pelton.observe.summaries import history_lines
from pelton.queue import FlowInfo, JobInfo, JobState, Outcome
from pelton.queue.scan import trend_points
from pelton.runtime import Deadline

T = TypeVar("T")
_FEW: Final = 25
_SAMPLE: Final = 100
_UNDERWAY: Final[tuple[JobState, ...]] = ("running", "retrying", "held")
_MOST_NODES: Final = 500
_MOST_DRAWN: Final = 200
_FLOWS: Final = 50
_LETTERS: Final = 5
_SEARCH_S: Final = 1.0
_LIST_S: Final = 0.25
_GROUP_S: Final = 0.005
_KEPT_S: Final = 60.0
_ASKED: Final = ("queue", "state", "job", "key", "tenant", "error", "last", "since", "until", "order")
_LEAST_SEARCH_S: Final = 0.02


class Group(NamedTuple):
    """Jobs of one name, or of one key, among those that ended last; ``median`` of their run times in seconds."""

    name: str
    ended: int
    failed: int
    median: float


class SharedLooks:
    """What was looked at a moment ago, for all viewers: who comes while it is looked at gets the same."""

    def __init__(self, jet: Jet, snapshots: Snapshots, every: float) -> None:
        self._jet = jet
        self._snapshots = snapshots
        self._every = every
        self._looks: dict[str, tuple[float, int, asyncio.Task[Any]]] = {}

    async def get(self, name: str, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what was found last, or look again if that is too old, or if somebody has changed something since."""
        now, changes = self._jet.runtime.clock.monotonic(), self._snapshots.changes
        last = self._looks.get(name)
        if last is not None and last[1] == changes and self._is_fresh(last[2], now - last[0]):
            return await asyncio.shield(last[2])
        # Not in the background, whose errors are logged: a queue that is not there is told to who asked.
        task = asyncio.get_running_loop().create_task(look(), name="pelton looks at a queue")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._looks[name] = (now, changes, task)
        for old in [key for key, one in self._looks.items() if one[2].done() and now - one[0] > _KEPT_S]:
            del self._looks[old]
        # Whoever leaves takes it from nobody else.
        return await asyncio.shield(task)

    def _is_fresh(self, task: asyncio.Task[Any], age: float) -> bool:
        return not task.done() or (age < self._every and not task.cancelled() and task.exception() is None)


class QueuePages:
    """The handlers of one dashboard's queues."""

    def __init__(self, jet: Jet, view: View, snapshots: Snapshots, every: float) -> None:
        self._jet = jet
        self._view = view
        self._snapshots = snapshots
        self._shared = SharedLooks(jet, snapshots, every)

    async def queue(self, request: Request) -> Response:
        """One queue: states, times, what runs, what failed."""
        name = request.path_params["name"]
        found = await self._shared.get(f"queue {name}", lambda: self._look_at(name))
        span = SPANS.get(request.query_params.get("span", ""), SPANS["hour"])
        charts = await self._shared.get(f"charts {span.minutes} {name}", lambda: self._charts(name, span))
        picture = await self._snapshots.latest()
        return await self._page(request, "queue.html", live=picture.texts, span=span, charts=charts, **found)

    async def _charts(self, name: str, span: ChartSpan) -> Any:
        now = self._jet.runtime.clock.now()
        return queue_charts(await trend_points(self._jet, name, now - (span.minutes + span.step) * MINUTE), span, now)

    async def _look_at(self, name: str) -> dict[str, Any]:
        jet = self._jet
        # The picture is as new as what is looked at here, and has all but queues beyond the first few.
        picture = await self._snapshots.latest()
        known = [one for one in picture.queues if one.name == name and not one.error]
        workers = picture.workers.get(name) if known else None
        queue = known[0] if known else await observe.queue_summary(jet, name)
        outcomes = await observe.ended_jobs(jet, name, _SAMPLE)
        workers = await observe.worker_summaries(jet, name) if workers is None else workers
        return {
            "queue": queue,
            "underway": [
                (state, getattr(queue, state), await self._list(name, observe.JobSelection(state=state)))
                for state in _UNDERWAY
                if getattr(queue, state)
            ],
            "by_name": groups([(one.job, one) for one in outcomes]),
            "by_key": groups([(one.key, one) for one in outcomes if one.key]),
            "ended": outcomes[::-1][:_FEW],
            "errors": await observe.group_dead_letters(jet, name, within=_GROUP_S),
            "dead": (await observe.list_dead_letters(jet, name, limit=_LETTERS, within=_LIST_S)).letters,
            "workers": worker_rows(workers, jet.runtime.clock.now()),
            "present": [one.worker for one in workers if one.seen_at and not one.stopping],
            "tenants": await observe.tenant_counts(jet, name, _FEW),
            "limits": await observe.limit_summaries(jet, name),
            "schedules": [(name, one) for one in (await observe.job_schedules(jet, name))[:ROWS]],
            "flows": [(name, one) for one in await observe.flow_summaries(jet, name, limit=5, within=_SEARCH_S / 4)],
        }

    async def _list(self, name: str, wanted: observe.JobSelection) -> tuple[JobInfo, ...]:
        return (await observe.list_jobs(self._jet, name, wanted, limit=_FEW, within=_LIST_S)).jobs

    async def _page(self, request: Request, template: str, **values: Any) -> Response:
        return await self._view.page(request, template, now=self._jet.runtime.clock.now(), **values)

    async def job(self, request: Request) -> Response:
        """One job: state, arguments, the errors of its attempts, its traceback or its result."""
        name, job_id = request.path_params["name"], request.path_params["job_id"]
        details = await observe.job_with_details(self._jet, name, job_id)
        return await self._page(
            request, "job.html", queue=name, details=details, job=details.job, course=course_of(details)
        )

    async def keys(self, request: Request) -> Response:
        """The keys with most jobs that have not ended, or the jobs of one key; it looks for a tenth of a second."""
        name, key = request.path_params["name"], request.query_params.get("key", "")
        begin = _number(request.query_params.get("from", ""))
        if key:
            jobs = await observe.jobs_of_key(self._jet, name, key, begin=begin, limit=_FEW)
            return await self._page(request, "key.html", queue=name, found=jobs, few=_FEW)
        return await self._page(request, "keys.html", queue=name, counts=await observe.key_counts(self._jet, name))

    # --- all queues

    async def _names(self, request: Request) -> tuple[list[str], str]:
        """Return the names of the queues, and the one that the request chooses; empty for all."""
        names = (await self._jet.queue_names())[:ROWS]
        chosen = request.query_params.get("queue", "")
        return names, chosen if chosen in names else ""

    async def jobs(self, request: Request) -> Response:
        """The jobs of a queue by state, a page at a time; or a search, which ends after a second and says where."""
        if wanted := request.query_params.get("q", "").strip():
            return await self._search(request, wanted)
        return await self._list_page(request, "jobs.html", self._jobs_of)

    async def dead(self, request: Request) -> Response:
        """The dead letters of a queue, the newest first, and by their errors."""
        return await self._list_page(request, "dead.html", self._letters_of)

    async def _list_page(self, request: Request, template: str, of_queue: Callable[..., Awaitable[Any]]) -> Response:
        """Return a page with a list of the chosen queue, or with the beginning of that of each."""
        names, chosen = await self._names(request)
        chosen = chosen or (names[0] if len(names) == 1 else "")
        asked = request.query_params
        selection = selection_of(asked, self._jet.runtime.clock.now())
        oldest_first = asked.get("order") == "oldest"
        cursor = asked.get("cursor", "") if chosen else ""
        deadline, lists = Deadline(self._jet.runtime.clock, _SEARCH_S), list[Any]()
        for number, name in enumerate([chosen] if chosen else names):
            left = max((deadline.left or 0.0) / (len(names) - number or 1), _LEAST_SEARCH_S)
            lists.append(await of_queue(name, selection, oldest_first, cursor, min(left, _LIST_S) if chosen else left))
        query = {name: text for name in _ASKED if (text := asked.get(name, ""))}
        return await self._page(
            request, template, lists=lists, queue=chosen, queues=names, wanted=selection, asked=query, few=_FEW,
            states=JOB_STATES, oldest_first=oldest_first, q="", found=(), unfinished=(),
            query=urlencode(query), is_first=not cursor,
        )  # fmt: skip

    async def _jobs_of(
        self, name: str, wanted: observe.JobSelection, oldest_first: bool, cursor: str, within: float
    ) -> observe.JobPage:
        return await observe.list_jobs(
            self._jet, name, wanted, oldest_first=oldest_first, cursor=cursor, limit=_FEW, within=within
        )

    async def _letters_of(
        self, name: str, wanted: observe.JobSelection, oldest_first: bool, cursor: str, within: float
    ) -> tuple[observe.DeadLetterPage, observe.ErrorGroups | None]:
        page = await observe.list_dead_letters(
            self._jet, name, wanted, oldest_first=oldest_first, cursor=cursor, limit=_FEW, within=within
        )
        # Beside the first page only.
        errors = None if cursor else await observe.group_dead_letters(self._jet, name, wanted, within=_GROUP_S)
        return page, errors

    async def _search(self, request: Request, wanted: str) -> Response:
        names, chosen = await self._names(request)
        begin = _number(request.query_params.get("from", ""))
        searched = [chosen] if chosen else names
        deadline = Deadline(self._jet.runtime.clock, _SEARCH_S)
        found: list[tuple[str, JobInfo]] = []
        unfinished: list[observe.JobSearch] = []
        for number, queue in enumerate(searched):
            share = max((deadline.left or 0.0) / (len(searched) - number), _LEAST_SEARCH_S)
            part = await observe.find_jobs(
                self._jet, queue, wanted, begin=begin if chosen else 0, limit=_FEW, within=share
            )
            found += [(queue, job) for job in part.jobs]
            if part.next_begin:
                unfinished.append(part)
        return await self._page(
            request, "jobs.html", found=found[: _FEW * len(searched)], q=wanted, queue=chosen, queues=names,
            unfinished=unfinished, few=_FEW, lists=(), wanted=observe.JobSelection(), asked={}, query="",
            states=JOB_STATES, oldest_first=False, is_first=True,
        )  # fmt: skip

    async def flows(self, request: Request) -> Response:
        """The flows of a queue, or of all, those that began last first."""
        names, chosen = await self._names(request)
        deadline = Deadline(self._jet.runtime.clock, _SEARCH_S)
        found = []
        for name in [chosen] if chosen else names:
            left = max(deadline.left or 0.0, _LEAST_SEARCH_S)
            found += [(name, one) for one in await observe.flow_summaries(self._jet, name, limit=_FLOWS, within=left)]
        found.sort(key=lambda entry: -entry[1].enqueued_at)
        return await self._page(request, "flows.html", flows=found[:_FLOWS], few=_FLOWS, queue=chosen, queues=names)

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
        graph = self._graph_of(request, name, flow) if len(flow.nodes) <= _MOST_DRAWN else ""
        return await self._page(request, "flow.html", queue=name, flow=flow, nodes=nodes, counts=counts, graph=graph)

    def _graph_of(self, request: Request, queue: str, flow: FlowInfo) -> Markup:
        to = f"{request.scope.get('root_path', '')}/queues/{quote(queue, safe='')}/jobs/"
        nodes = [
            GraphNode(
                node.number, visible_text(node.job), node.state, node.state,
                to + quote(node.id, safe="") if node.id else f"#node-{node.number}", node.after,
            )
            for node in flow.nodes
        ]  # fmt: skip
        # Everything in it is escaped already.
        return Markup(flow_graph(nodes, f"Flow {visible_text(flow.name or flow.id)}"))

    async def schedules(self, request: Request) -> Response:
        names, _ = await self._names(request)
        found = [(name, one) for name in names for one in await observe.job_schedules(self._jet, name)]
        return await self._page(request, "schedules.html", schedules=found[:ROWS], total=len(found))

    async def limits(self, request: Request) -> Response:
        """The limits of all queues, and how much of each is used."""
        names, _ = await self._names(request)
        found = [one for name in names for one in await observe.limit_summaries(self._jet, name)]
        return await self._page(request, "limits.html", limits=found[:ROWS], total=len(found), queues=names)


class CourseEntry(NamedTuple):
    """Something that happened to a job, ``after`` so many seconds."""

    at: int
    what: str
    after: float
    detail: str


def course_of(details: observe.JobDetails) -> list[CourseEntry]:
    """Return what happened to a job, the first thing first: each attempt that failed, the one that runs, its end."""
    job, found = details.job, list[tuple[int, str, str]]()
    found.append((job.enqueued_at, "Enqueued", f"under the key {job.key}" if job.key else ""))
    found += [(one.at, f"Attempt {one.attempt} failed", one.error) for one in details.errors]
    if job.started_at:
        found.append((job.started_at, f"Attempt {job.attempt} began", f"by worker {job.worker}" if job.worker else ""))
    found += history_lines(details.history)
    if job.progress and job.progress.at:
        found.append((job.progress.at, f"Told {job.progress.fraction:.0%}", job.progress.note))
    if job.outcome is not None:
        found.append((job.outcome.finished_at, job.outcome.state.capitalize(), job.outcome.error))
    found.sort(key=itemgetter(0))
    times = [found[0][0], *(at for at, _, _ in found)]
    return [
        CourseEntry(at, what, (at - before) / SECOND, detail)
        for (at, what, detail), before in zip(found, times, strict=False)
    ]


def groups(ended: Sequence[tuple[str, Outcome]], most: int = 10) -> list[Group]:
    """Return groups of jobs by name or key; the group with the most ended jobs first."""
    found: dict[str, list[Outcome]] = {}
    for name, outcome in ended:
        found.setdefault(name, []).append(outcome)
    ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [
        Group(name, len(ones), sum(one.state == "failed" for one in ones), run_times(ones).median)
        for name, ones in ordered[:most]
    ]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
