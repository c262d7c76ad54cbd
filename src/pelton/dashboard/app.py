"""The dashboard as an ASGI app: its routes, and what every request and answer goes through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pelton import observe
from pelton.api import ConfigError, DirectGetDisabledError, MessageNotFoundError, PeltonError, StoredMessage, StoreError
from pelton.api.wording import text_for_people
from pelton.connect import Jet
from pelton.dashboard.access import AccessToken, DashboardDoor, LoginThrottle, bearer_of
from pelton.dashboard.action_pages import Actions, address_of
from pelton.dashboard.history_charts import SPANS, lag_charts, moments_of, stored_rates, stream_chart
from pelton.dashboard.pictures import ROWS, Snapshots
from pelton.dashboard.queue_pages import QueuePages
from pelton.dashboard.view import STYLE_SOURCE, View, set_viewer
from pelton.jet import Stream
from pelton.jet.backlogs import MINUTE, stream_trend
from pelton.metrics import metrics_text
from pelton.observe.holdings import consumer_infos, consumer_summary, stream_summary
from pelton.queue.scan import keep_trends

# --- the pages of streams and what is built on them. Each asks for a bounded number of things, however large it is

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
        """The overview: what the store holds, and how it is doing."""
        picture = await self._snapshots.latest()
        own = [one for one in picture.streams if one.name not in picture.internal]
        return await self._view.page(
            request, "overview.html", picture=picture, live=picture.texts, streams=own[:_FEW], own=own
        )

    async def queues(self, request: Request) -> Response:
        picture = await self._snapshots.latest()
        return await self._view.page(request, "queues.html", picture=picture, live=picture.texts)

    async def streams(self, request: Request) -> Response:
        """All streams: those of users first, and what Pelton keeps for queues, locks and elections apart."""
        picture = await self._snapshots.latest()
        own = [one for one in picture.streams if one.name not in picture.internal]
        internal = [one for one in picture.streams if one.name in picture.internal]
        return await self._view.page(request, "streams.html", own=own, internal=internal, rows=ROWS, live=picture.texts)

    async def workers(self, request: Request) -> Response:
        picture = await self._snapshots.latest()
        return await self._view.page(request, "workers.html", live=picture.texts)

    async def events(self, request: Request) -> Response:
        return StreamingResponse(self._snapshots.events(), media_type="text/event-stream")

    async def audit(self, request: Request) -> Response:
        """Who did what, the newest first."""
        asked = request.query_params.get("before", "")
        before = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 19 else 0
        entries = await observe.audit_entries(self._jet, limit=ROWS, before=before)
        older = entries[-1][0] if len(entries) == ROWS else 0
        return await self._view.page(request, "audit.html", entries=entries, older=older)

    async def metrics(self, request: Request) -> Response:
        text, kind = await metrics_text(self._jet, path=self._path, accept=request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    async def stream(self, request: Request) -> Response:
        """One stream: its messages by sequence and subject, the newest by default."""
        stream = await self._jet.stream(request.path_params["name"])
        info = await stream.info()
        asked, subject = request.query_params.get("seq", ""), request.query_params.get("subject", "").strip()
        newest = max(info.state.last_seq - _FEW + 1, 1)
        begin = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 19 else 0
        now, span = self._jet.runtime.clock.now(), SPANS.get(request.query_params.get("span", ""), SPANS["hour"])
        consumers = await consumer_infos(self._jet, stream.name)
        trend = await stream_trend(self._jet, info, consumers, now - (span.minutes + span.step) * MINUTE)
        rates = stored_rates(trend, span) if trend is not None else []
        # Of other streams, messages are removed while they are used: the rest does not tell when they came.
        if stream_summary(info).kind == "stream" and info.config.retention == "limits":
            rates = await observe.stream_rates(self._jet, info, moments_of(span, now))
        messages = await _messages(stream, begin or (1 if subject else newest), subject or ">")
        return await self._view.page(
            request,
            "stream.html",
            stream=stream_summary(info),
            span=span,
            charts=[stream_chart(rates, span, now)] if rates else [],
            lags=None if trend is None else lag_charts(trend, span, now),
            consumers=[consumer_summary(one, info.state.last_seq) for one in consumers[:ROWS]],
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
        return await self._view.page(request, "message.html", stream=stream.name, message=message)

    async def consumers(self, request: Request) -> Response:
        """All consumers: those of users first, and with most to do first."""
        picture = await self._snapshots.latest()
        own = [one for one in picture.consumers if one.stream not in picture.internal]
        internal = [one for one in picture.consumers if one.stream in picture.internal]
        return await self._view.page(
            request, "consumers.html", own=own, internal=internal, rows=ROWS, live=picture.texts
        )

    async def buckets(self, request: Request) -> Response:
        return await self._view.page(
            request,
            "buckets.html",
            buckets=(await observe.bucket_summaries(self._jet))[:ROWS],
            objects=(await observe.object_summaries(self._jet))[:ROWS],
        )

    async def locks(self, request: Request) -> Response:
        """The locks and semaphores: who holds which lock or slot."""
        found = await observe.lock_summaries(self._jet)
        now = self._jet.runtime.clock.now()
        return await self._view.page(request, "locks.html", locks=found[:ROWS], total=len(found), now=now)

    async def elections(self, request: Request) -> Response:
        names = [name for name in await self._jet.stream_names() if name.startswith("KV_ELECTION_")][:ROWS]
        found = [one for name in names for one in await observe.election_summaries(self._jet, name.removeprefix("KV_"))]
        return await self._view.page(request, "elections.html", elections=found, now=self._jet.runtime.clock.now())


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


_HERE: Final = Path(__file__).parent
_HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'self'; style-src {STYLE_SOURCE}; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_REFUSALS: Final = {404: "There is no such page.", 405: "This page cannot do that.", 413: "That is too large."}
_KEPT: Final = "public, max-age=31536000, immutable"
"""For files whose address has their version."""


def app(
    jet: Jet,
    *,
    prefix: str = "",
    token: str = "",
    tokens: Collection[AccessToken] = (),
    actions: bool | None = None,
    hosts: Collection[str] = (),
    path: str = "",
    name: str = "",
    stores: Collection[str] = (),
    every: float = 2.0,
) -> ASGIApp:
    """Return the dashboard of an open store or cluster, which stays the caller's.

    ``prefix`` is where the app is mounted, such as ``/ops``. Only who gives ``token``, or one of ``tokens``, each with
    a name and a role, sees anything; without any, everybody who can reach the page may look. ``actions``: whether
    viewers can cancel, redrive, pause, purge and publish, as far as their role allows; None: only with a token. Each
    action is written to the stream ``PELTON_AUDIT`` (:func:`pelton.observe.audit_entries`). A store opened with
    ``read_only=True`` has no actions. The points of the charts are written once a minute until the store is closed,
    unless it was opened with ``read_only=True``, or ``actions`` is False. ``hosts``: the names that requests may come
    for; empty: any. ``path``: the file of the store, for its metrics, and to see its disk, its log and who writes.
    ``name``: what the store is called in every header and title; empty: the name of the file. ``stores``: names of
    dashboards beside this one, to which the header leads, each at its name in place of this one's. ``every``: seconds
    between two looks at the store, while somebody watches. Raises ConfigError.
    """
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigError(f"dashboard: prefix is {prefix!r}; write it as '/ops'")
    given = [*tokens, *([AccessToken("token", "administer", token)] if token else [])]
    may_act = (bool(given) if actions is None else actions) and not jet.backend.planning.read_only
    door = DashboardDoor(os.urandom(32), tokens=given, actions=may_act, hosts=frozenset(name.lower() for name in hosts))
    throttle = LoginThrottle()
    snapshots = Snapshots(jet, every, path)
    view = View(door, name or os.path.basename(path), snapshots.health, stores)
    pages, queues, acts = (
        Pages(jet, view, snapshots, path),
        QueuePages(jet, view, snapshots, every),
        Actions(jet, view, snapshots, throttle),
    )
    static = Mount("/static", StaticFiles(directory=_HERE / "static"))
    routes = [*_routes_that_show(pages), *_shown_of_queues(queues), static, *_routes_that_change(acts)]

    async def on_error(request: Request, error: Exception) -> Response:
        status = 503 if isinstance(error, StoreError) else 404
        if request.url.path.endswith("/metrics"):
            return PlainTextResponse(f"{text_for_people(error)}\n", status)
        return await view.page(request, "error.html", status=status, message=text_for_people(error))

    async def on_refusal(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = _REFUSALS.get(status, "This request was not understood.")
        return await view.page(request, "error.html", status=status, message=message)

    if actions is not False and not jet.backend.planning.read_only:
        _keep_trends(jet)
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guarded, door=door, prefix=prefix, throttle=throttle, now=jet.runtime.clock.monotonic)],
        exception_handlers={PeltonError: on_error, HTTPException: on_refusal},
    )


def _keep_trends(jet: Jet) -> None:
    """Begin to write the points of the charts, until the store is closed; without an event loop, write none."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        jet.runtime.spawn(keep_trends(jet), "pelton notes how the store went")


def _routes_that_show(pages: Pages) -> list[Route]:
    return [
        Route("/", pages.overview, name="overview"),
        Route("/queues", pages.queues),
        Route("/streams", pages.streams),
        Route("/workers", pages.workers),
        Route("/streams/{name}", pages.stream),
        Route("/streams/{name}/messages/{seq:int}", pages.message),
        Route("/consumers", pages.consumers),
        Route("/buckets", pages.buckets),
        Route("/locks", pages.locks),
        Route("/elections", pages.elections),
        Route("/audit", pages.audit),
        Route("/events", pages.events),
        Route("/metrics", pages.metrics),
    ]


def _shown_of_queues(pages: QueuePages) -> list[Route]:
    return [
        Route("/queues/{name}", pages.queue),
        Route("/queues/{name}/keys", pages.keys),
        Route("/queues/{name}/jobs/{job_id}", pages.job),
        Route("/queues/{name}/flows/{flow_id}", pages.flow),
        Route("/jobs", pages.jobs),
        Route("/dead", pages.dead),
        Route("/flows", pages.flows),
        Route("/schedules", pages.schedules),
        Route("/limits", pages.limits),
    ]


def _routes_that_change(acts: Actions) -> list[Route]:
    return [
        Route("/login", acts.login, methods=["GET", "POST"]),
        Route("/logout", acts.logout, methods=["POST"]),
        Route("/queues/{name}/limits", acts.set_limits, methods=["GET", "POST"]),
        Route("/streams/{name}/publish", acts.publish, methods=["GET", "POST"]),
        Route("/queues/{name}/jobs/{job_id}/signal", acts.send_signal, methods=["GET", "POST"]),
        Route("/{place:str}/{name}/{action}", acts.ask, methods=["GET"]),
        Route("/{place:str}/{name}/{action}", acts.act, methods=["POST"]),
    ]


class _Guarded:
    """Refuses who may not look, and adds the headers that bind a browser."""

    def __init__(
        self, app: ASGIApp, door: DashboardDoor, prefix: str, throttle: LoginThrottle, now: Callable[[], float]
    ) -> None:
        self._app = app
        self._door = door
        self._prefix = prefix
        self._throttle = throttle
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = self._with_root(scope)
        refusal, is_static = self._refusal(Request(scope)), _path_of(scope).startswith("/static/")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if is_static and message["status"] == 200:
                    headers["cache-control"] = _KEPT
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _with_root(self, scope: Scope) -> Scope:
        """Tell the routes where the app is mounted, if whoever calls it, such as Django's dispatch, does not."""
        root, prefix = scope.get("root_path", ""), self._prefix
        if not prefix or root.endswith(prefix) or not f"{scope['path']}/".startswith(f"{root}{prefix}/"):
            return scope
        return {**scope, "root_path": root + prefix}

    def _refusal(self, request: Request) -> Response | None:
        headers: Headers = request.headers
        if not self._door.knows_host(headers.get("host", "")):
            return PlainTextResponse("This page does not answer to that name of a host.\n", 421)
        authorization, address = headers.get("authorization", ""), address_of(request)
        bearer = bearer_of(authorization)
        if bearer is not None and self._throttle.is_full(address, self._now()):
            return PlainTextResponse("Too many tokens were wrong: wait a minute.\n", 429)
        if (viewer := self._door.viewer(authorization, request.cookies)) is not None:
            set_viewer(request, viewer)
            return None
        if bearer is not None:
            self._throttle.note_wrong(address, self._now())
        root, asked = request.scope.get("root_path", ""), _path_of(request.scope)
        if asked == "/login" or asked.startswith("/static/"):
            return None
        if request.method == "GET" and "text/html" in headers.get("accept", ""):
            query = f"?{request.url.query}" if request.url.query else ""
            following = f"?next={quote(asked + query, safe='')}" if asked != "/" else ""
            return RedirectResponse(f"{root}/login{following}", 303)
        return PlainTextResponse("Give the token.\n", 401, {"www-authenticate": "Bearer"})


def _path_of(scope: Scope) -> str:
    return str(scope["path"].removeprefix(scope.get("root_path", "")))


# --- the dashboard on a port of its own, served by uvicorn


class _Server(uvicorn.Server):
    """A server that leaves signals to the program that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RequestConnection(H11Protocol):
    """Is closed when its request is not whole in time: uvicorn would keep it for ever."""

    within: float = 10.0
    """Seconds."""
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a request."""
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, if it is not whole."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_request()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.within, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class DashboardServer:
    """Serves an app on a socket that listens."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        # Viewers of a live page never end their request by themselves.
        self._server = _Server(
            uvicorn.Config(
                app,
                http=RequestConnection,
                log_level="critical",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._listener = listener

    async def serve(self) -> None:
        """Serve until :meth:`stop` is called."""
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """End; requests have a second to finish. From any thread."""
        self._server.should_exit = True


ONLY: Final = ""
"""The name of a dashboard that is alone, and takes every path."""


class DashboardSwitch:
    """Hands a request to the dashboard that its path names after ``prefix``.

    Proxies differ: some hand on the whole path, others take the prefix away.
    """

    def __init__(self, apps: Mapping[str, ASGIApp], prefix: str) -> None:
        self._apps = apps
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one for no store is led to the first."""
        if scope["type"] == "http" and not f"{scope['path']}/".startswith(f"{self._prefix}/"):
            scope = {**scope, "path": self._prefix + scope["path"]}
        name = scope.get("path", "").removeprefix(self._prefix).partition("/")[2].partition("/")[0]
        first = next(iter(self._apps))
        app = self._apps.get(ONLY if first == ONLY else name)
        await (app or RedirectResponse(f"{self._prefix}/{quote(first, safe='')}/", 303))(scope, receive, send)
