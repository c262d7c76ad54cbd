"""The pages that only show. Each asks for a bounded number of things, however large the store is."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pelton import observe
from pelton.api import DirectGetDisabledError, JobNotFoundError, MessageNotFoundError, StoredMessage
from pelton.connect import Jet
from pelton.dashboard.snapshots import ROWS, Snapshots
from pelton.dashboard.view import View
from pelton.jet import Stream
from pelton.metrics import metrics_text
from pelton.observe.streams import stream_summary
from pelton.queue import DeadLetter, JobInfo

_FEW: Final = 25
_SEARCHED: Final = 500
_PAGE_BYTES: Final = 4 << 20
"""How many bytes of messages a page of a stream reads."""


class Pages:
    """The handlers of one dashboard."""

    def __init__(self, jet: Jet, view: View, snapshots: Snapshots, path: str) -> None:
        self._jet = jet
        self._view = view
        self._snapshots = snapshots
        self._path = path

    async def overview(self, request: Request) -> Response:
        """What there is, and how it goes."""
        picture = await self._snapshots.latest()
        return self._view.page(request, "overview.html", picture=picture, live=picture.texts, rows=ROWS)

    async def events(self, request: Request) -> Response:
        """What changes, as server-sent events."""
        return StreamingResponse(self._snapshots.events(), media_type="text/event-stream")

    async def metrics(self, request: Request) -> Response:
        """The metrics for Prometheus."""
        text, kind = await metrics_text(self._jet, path=self._path, accept=request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    async def queue(self, request: Request) -> Response:
        """One queue: states, times, what runs, what failed."""
        jet, name = self._jet, request.path_params["name"]
        queue = await observe.queue_summary(jet, name)
        picture = await self._snapshots.latest()
        # What is asked now is newer than the picture.
        outcomes = await observe.ended_jobs(jet, name, _FEW)
        return self._view.page(
            request,
            "queue.html",
            queue=queue,
            live=picture.texts,
            now=jet.runtime.clock.now(),
            underway=await observe.jobs_underway(jet, name, _FEW),
            ended=outcomes[::-1],
            dead=await self._dead(name),
            workers=await observe.worker_summaries(jet, name),
            done=request.query_params.get("done", ""),
        )

    async def _dead(self, name: str) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async with aclosing(observe.dead_letters(self._jet, name)) as letters:
            async for letter in letters:
                found.append(letter)
                if len(found) == _FEW:
                    break
        return found

    async def job(self, request: Request) -> Response:
        """One job: state, error, traceback, arguments of one that failed."""
        name, job_id = request.path_params["name"], request.path_params["job_id"]
        job = await observe.job_details(self._jet, name, job_id)
        letter = await observe.dead_letter(self._jet, name, job_id)
        return self._view.page(request, "job.html", queue=name, job=job, letter=letter)

    async def jobs(self, request: Request) -> Response:
        """A search for jobs by id, key or name."""
        wanted, name = request.query_params.get("q", "").strip(), request.query_params.get("queue", "")
        names = (await self._jet.queue_names())[:ROWS]
        found: list[tuple[str, JobInfo]] = []
        for queue in [name] if name in names else names:
            found += [(queue, job) for job in await self._found(queue, wanted)]
            if len(found) >= _FEW:
                break
        return self._view.page(
            request, "jobs.html", found=found[:_FEW], q=wanted, queue=name, queues=names, searched=_SEARCHED
        )

    async def _found(self, queue: str, wanted: str) -> list[JobInfo]:
        found: list[JobInfo] = []
        if wanted:
            with suppress(JobNotFoundError):
                found.append(await observe.job_details(self._jet, queue, wanted))
        seen = 0
        async with aclosing(observe.unfinished_jobs(self._jet, queue)) as jobs:
            async for job in jobs:
                seen += 1
                if (not wanted or wanted in (job.key, job.job)) and job.id != wanted:
                    found.append(job)
                if len(found) >= _FEW or seen >= _SEARCHED:
                    break
        return found

    async def stream(self, request: Request) -> Response:
        """One stream: its messages by sequence and subject, the newest if not said otherwise."""
        stream = await self._jet.stream(request.path_params["name"])
        info = await stream.info()
        asked, subject = request.query_params.get("seq", ""), request.query_params.get("subject", "").strip()
        newest = max(info.state.last_seq - _FEW + 1, 1)
        begin = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 19 else 0
        messages = await _messages(stream, begin or (1 if subject else newest), subject or ">")
        return self._view.page(
            request,
            "stream.html",
            stream=stream_summary(info),
            consumers=(await observe.consumer_summaries(self._jet, stream.name))[:ROWS],
            messages=messages,
            subject=subject,
            seq=asked,
            few=_FEW,
            live=(await self._snapshots.latest()).texts,
        )

    async def message(self, request: Request) -> Response:
        """One message with all of its payload that is shown."""
        stream = await self._jet.stream(request.path_params["name"])
        message = await stream.get_message(request.path_params["seq"])
        return self._view.page(request, "message.html", stream=stream.name, message=message)

    async def consumers(self, request: Request) -> Response:
        """All consumers, those with most to do first."""
        picture = await self._snapshots.latest()
        return self._view.page(request, "consumers.html", consumers=picture.consumers[:ROWS], live=picture.texts)

    async def buckets(self, request: Request) -> Response:
        """Key-value buckets and object stores."""
        return self._view.page(
            request,
            "buckets.html",
            buckets=(await observe.bucket_summaries(self._jet))[:ROWS],
            objects=(await observe.object_summaries(self._jet))[:ROWS],
        )

    async def locks(self, request: Request) -> Response:
        """Who holds which lock or slot."""
        found = await observe.lock_summaries(self._jet)
        now = self._jet.runtime.clock.now()
        return self._view.page(request, "locks.html", locks=found[:ROWS], total=len(found), now=now)

    async def elections(self, request: Request) -> Response:
        """Who leads."""
        names = [name for name in await self._jet.stream_names() if name.startswith("KV_ELECTION_")][:ROWS]
        found = [one for name in names for one in await observe.election_summaries(self._jet, name.removeprefix("KV_"))]
        return self._view.page(request, "elections.html", elections=found, now=self._jet.runtime.clock.now())


async def _messages(stream: Stream, seq: int, subject: str) -> list[StoredMessage]:
    try:
        return await stream.get_messages(_FEW, seq=seq, subject=subject, max_bytes=_PAGE_BYTES)
    except DirectGetDisabledError:
        found: list[StoredMessage] = []
        while len(found) < _FEW and (message := await _next(stream, seq, subject)) is not None:
            found.append(message)
            seq = message.seq + 1
        return found


async def _next(stream: Stream, seq: int, subject: str) -> StoredMessage | None:
    try:
        return await stream.get_next_message(subject, seq)
    except MessageNotFoundError:
        return None
