"""The pages of streams and what is built on them. Each asks for a bounded number of things, however large it is."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pelton import observe
from pelton.api import DirectGetDisabledError, MessageNotFoundError, StoredMessage
from pelton.connect import Jet
from pelton.dashboard.snapshots import ROWS, Snapshots
from pelton.dashboard.view import View
from pelton.jet import Stream
from pelton.metrics import metrics_text
from pelton.observe.streams import stream_summary

_FEW: Final = 25
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
