"""The dashboard as an ASGI app: its routes, and what every request and answer goes through."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote

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

from pelton import observe
from pelton.api import ConfigError, DirectGetDisabledError, MessageNotFoundError, PeltonError, StoredMessage
from pelton.connect import Jet
from pelton.dashboard.access import VISITOR, AccessToken, DashboardDoor, LoginThrottle, Role, bearer_of
from pelton.dashboard.actions import QUEUE_OPERATIONS, STREAM_OPERATIONS, Operation, plain_stream
from pelton.dashboard.history_charts import SPANS, moments_of, stream_chart
from pelton.dashboard.pictures import ROWS, Snapshots
from pelton.dashboard.queue_pages import QueuePages
from pelton.dashboard.view import STYLE_SOURCE, View, set_viewer, viewer_of
from pelton.jet import Stream
from pelton.metrics import metrics_text
from pelton.observe.holdings import stream_summary

_FORM_BYTES: Final = 8192


async def form_of(request: Request, limit: int = _FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form of at most ``limit`` bytes. Raises HTTPException."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise HTTPException(413)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise HTTPException(400) from None
    return {name: values[-1] for name, values in fields.items()}


def headers_of(text: str) -> dict[str, str]:
    """Return headers from lines such as ``Name: value``; lines without a colon are left out."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


# --- what changes something. Each operation is asked about on a page of its own first; a message is written on one

_MESSAGE_BYTES: Final = 1 << 20
_BY_PLACE: Final = {"queues": QUEUE_OPERATIONS, "streams": STREAM_OPERATIONS}


class Actions:
    """The handlers that change something."""

    def __init__(self, jet: Jet, view: View, snapshots: Snapshots, throttle: LoginThrottle) -> None:
        self._jet = jet
        self._view = view
        self._snapshots = snapshots
        self._throttle = throttle

    async def ask(self, request: Request) -> Response:
        """Ask whether an operation is meant."""
        place, name, operation = self._operation_of(request)
        await self._check_exists(place, name)
        of_id = request.query_params.get("id", "")
        return self._with_form(
            request,
            "ask.html",
            place=place,
            name=name,
            action=request.path_params["action"],
            operation=operation,
            of_id=of_id,
            back=_page_of(place, name, operation, of_id),
        )

    async def act(self, request: Request) -> Response:
        """Do what was asked about."""
        place, name, operation = self._operation_of(request)
        form = await form_of(request)
        if not self._is_own(request, form):
            return self._refuse(request)
        await self._check_exists(place, name)
        of_id, action = form.get("id", ""), request.path_params["action"]
        try:
            result = await operation.do(self._jet, name, of_id)
        except PeltonError as error:
            await self._record(request, action, f"{name} {of_id}".strip(), error=str(error))
            raise
        await self._record(request, action, f"{name} {of_id}".strip(), operation.done, count=result)
        return self._redirect_after(request, _page_of(place, name, operation, of_id), action)

    def _operation_of(self, request: Request) -> tuple[str, str, Operation]:
        place, name = request.path_params["place"], request.path_params["name"]
        operation = _BY_PLACE.get(place, {}).get(request.path_params["action"])
        if operation is None:
            raise HTTPException(404)
        _check_role(request, operation.role)
        return place, name, operation

    async def _record(
        self, request: Request, action: str, target: str, result: str = "", *, count: object = None, error: str = ""
    ) -> None:
        if isinstance(count, int):
            result = f"{result} ({count:,})"
        entry = observe.AuditEntry(
            who=viewer_of(request).name,
            source="page",
            origin=_address_of(request),
            action=action,
            target=target,
            result=result,
            error=error,
        )
        await observe.record_action(self._jet, entry)

    async def _check_exists(self, place: str, name: str) -> None:
        """Raise StreamNotFoundError, ConfigError."""
        await (observe.queue_summary(self._jet, name) if place == "queues" else self._jet.stream(name))

    async def publish(self, request: Request) -> Response:
        """Write a message, and store it."""
        name = request.path_params["name"]
        _check_role(request, "act")
        stream = await plain_stream(self._jet, name)
        if request.method != "POST":
            first = next(iter(stream.config.subjects), "")
            return self._with_form(request, "publish.html", stream=name, subject="" if set(first) & {*"*>"} else first)
        form = await form_of(request, _MESSAGE_BYTES)
        if not self._is_own(request, form):
            return self._refuse(request)
        # Browsers end each line of a form with CRLF, which nobody has typed.
        data, headers = form.get("data", "").replace("\r\n", "\n").encode(), headers_of(form.get("headers", ""))
        await self._jet.publish(form.get("subject", ""), data, headers=headers or None, expected_stream=name)
        await self._record(request, "publish", f"{name} {form.get('subject', '')}")
        return self._redirect_after(request, f"/streams/{quote(name, safe='')}", "publish")

    async def login(self, request: Request) -> Response:
        """Take a token, and give a cookie for it; lead to the page that was asked for."""
        door, root = self._view.door, request.scope.get("root_path", "")
        form = await form_of(request) if request.method == "POST" else dict(request.query_params)
        page = root + _own_page(form.get("next", ""))
        if door.is_open:
            return RedirectResponse(f"{root}/", 303)
        address, now = _address_of(request), self._jet.runtime.clock.monotonic()
        if request.method != "POST":
            return self._view.page(request, "login.html", next=form.get("next", ""), wrong="")
        if self._throttle.is_full(address, now):
            wrong = "Too many tokens were wrong. Wait a minute, then try again."
            return self._view.page(request, "login.html", status=429, next=form.get("next", ""), wrong=wrong)
        session = door.session_of(form.get("token", ""))
        if session is None:
            self._throttle.note_wrong(address, now)
            wrong = "That is not the token."
            return self._view.page(request, "login.html", status=403, next=form.get("next", ""), wrong=wrong)
        answer = RedirectResponse(page, 303)
        _set_cookie(answer, request, door.session_cookie, session)
        return answer

    async def logout(self, request: Request) -> Response:
        """Forget who the viewer is."""
        root = request.scope.get("root_path", "")
        answer = RedirectResponse(f"{root}/login", 303)
        answer.delete_cookie(self._view.door.session_cookie, path=root or "/", httponly=True, samesite="strict")
        return answer

    # --- forms

    def _with_form(self, request: Request, template: str, **values: Any) -> Response:
        """Return a page with a form that its visitor alone can send."""
        visitor = request.cookies.get(VISITOR) or os.urandom(16).hex()
        answer = self._view.page(request, template, form_token=self._view.door.form_token(visitor), **values)
        _set_cookie(answer, request, VISITOR, visitor)
        return answer

    def _is_own(self, request: Request, form: dict[str, str]) -> bool:
        site = request.headers.get("sec-fetch-site", "")
        return self._view.door.is_own_form(request.cookies.get(VISITOR, ""), form.get("form_token", ""), site)

    def _refuse(self, request: Request) -> Response:
        text = "This form is not of this page, or too old. Go back, reload."
        return self._view.page(request, "error.html", status=403, message=text)

    def _redirect_after(self, request: Request, page: str, action: str) -> Response:
        self._snapshots.forget()
        return RedirectResponse(f"{request.scope.get('root_path', '')}{page}?done={action}", 303)


def _check_role(request: Request, role: Role) -> None:
    """Raise HTTPException: 404 where nobody can act, 403 for who may not."""
    viewer = viewer_of(request)
    if not viewer.may(role):
        raise HTTPException(403 if viewer.may("act") else 404)


def _address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _own_page(asked: str) -> str:
    """Return a page of this dashboard that was asked for; the overview for anything else, such as another site."""
    return asked if asked.startswith("/") and not asked.startswith(("//", "/\\")) and asked.isprintable() else "/"


def _page_of(place: str, name: str, operation: Operation, of_id: str) -> str:
    """Return the page that shows what an operation is about."""
    if operation.of == "schedule":
        return "/schedules"
    page = f"/{place}/{quote(name, safe='')}"
    return f"{page}/flows/{quote(of_id, safe='')}" if operation.of == "flow" else page


def _set_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    where = request.scope.get("root_path", "") or "/"
    is_secure = request.url.scheme == "https"
    answer.set_cookie(name, value, path=where, httponly=True, samesite="strict", secure=is_secure)


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
        return self._view.page(
            request, "overview.html", picture=picture, live=picture.texts, streams=own[:_FEW], own=own
        )

    async def queues(self, request: Request) -> Response:
        """All queues, each with all that is known of it."""
        picture = await self._snapshots.latest()
        return self._view.page(request, "queues.html", picture=picture, live=picture.texts)

    async def streams(self, request: Request) -> Response:
        """All streams: those of users first, and what Pelton keeps for queues, locks and elections apart."""
        picture = await self._snapshots.latest()
        own = [one for one in picture.streams if one.name not in picture.internal]
        internal = [one for one in picture.streams if one.name in picture.internal]
        return self._view.page(request, "streams.html", own=own, internal=internal, rows=ROWS, live=picture.texts)

    async def workers(self, request: Request) -> Response:
        """The workers of all queues that have jobs."""
        picture = await self._snapshots.latest()
        return self._view.page(request, "workers.html", live=picture.texts)

    async def events(self, request: Request) -> Response:
        """What changes, as server-sent events."""
        return StreamingResponse(self._snapshots.events(), media_type="text/event-stream")

    async def audit(self, request: Request) -> Response:
        """Who did what, the newest first."""
        asked = request.query_params.get("before", "")
        before = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 19 else 0
        entries = await observe.audit_entries(self._jet, limit=ROWS, before=before)
        older = entries[-1][0] if len(entries) == ROWS else 0
        return self._view.page(request, "audit.html", entries=entries, older=older)

    async def metrics(self, request: Request) -> Response:
        """The metrics for Prometheus."""
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
        # Of other streams, messages are removed while they are used: their sequences do not tell when they came.
        is_log = stream_summary(info).kind == "stream" and info.config.retention == "limits"
        rates = await observe.stream_rates(self._jet, info, moments_of(span, now)) if is_log else []
        messages = await _messages(stream, begin or (1 if subject else newest), subject or ">")
        return self._view.page(
            request,
            "stream.html",
            stream=stream_summary(info),
            span=span,
            charts=[stream_chart(rates, span, now)] if rates else [],
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
        """All consumers: those of users first, and with most to do first."""
        picture = await self._snapshots.latest()
        own = [one for one in picture.consumers if one.stream not in picture.internal]
        internal = [one for one in picture.consumers if one.stream in picture.internal]
        return self._view.page(request, "consumers.html", own=own, internal=internal, rows=ROWS, live=picture.texts)

    async def buckets(self, request: Request) -> Response:
        """Key-value buckets and object stores."""
        return self._view.page(
            request,
            "buckets.html",
            buckets=(await observe.bucket_summaries(self._jet))[:ROWS],
            objects=(await observe.object_summaries(self._jet))[:ROWS],
        )

    async def locks(self, request: Request) -> Response:
        """The locks and semaphores: who holds which lock or slot."""
        found = await observe.lock_summaries(self._jet)
        now = self._jet.runtime.clock.now()
        return self._view.page(request, "locks.html", locks=found[:ROWS], total=len(found), now=now)

    async def elections(self, request: Request) -> Response:
        """The elections: who leads each."""
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
_REFUSALS: Final = {
    404: "There is no such page.",
    405: "This page cannot do that.",
    413: "That is too large.",
}
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
    every: float = 2.0,
) -> ASGIApp:
    """Return the dashboard of an open store or cluster, which stays the caller's.

    ``prefix`` is where the app is mounted, such as ``/ops``. Only who gives ``token``, or one of ``tokens``, each with
    a name and a role, sees anything; without any, everybody who can reach the page may look. ``actions``: whether
    viewers can cancel, redrive, pause, purge and publish, as far as their role allows; None: only with a token. Each
    action is written to the stream ``PELTON_AUDIT`` (:func:`pelton.observe.audit_entries`). A store opened with
    ``read_only=True`` has no actions. ``hosts``: the names that requests may come for; empty: any. ``path``: the file
    of the store, for its metrics, and to see its disk, its log and who writes. ``name``: what the store is called in
    every header and title; empty: the name of the file. ``every``: seconds between two looks at the store, while
    somebody watches. Raises ConfigError.
    """
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigError(f"dashboard: prefix is {prefix!r}; write it as '/ops'")
    given = [*tokens, *([AccessToken("token", "administer", token)] if token else [])]
    may_act = (bool(given) if actions is None else actions) and not jet.backend.planning.read_only
    door = DashboardDoor(os.urandom(32), tokens=given, actions=may_act, hosts=frozenset(name.lower() for name in hosts))
    throttle = LoginThrottle()
    snapshots = Snapshots(jet, every, path)
    view = View(door, name or os.path.basename(path), snapshots.health)
    pages, queues, acts = (
        Pages(jet, view, snapshots, path),
        QueuePages(jet, view, snapshots),
        Actions(jet, view, snapshots, throttle),
    )
    static = Mount("/static", StaticFiles(directory=_HERE / "static"))
    routes = [*_routes_that_show(pages), *_shown_of_queues(queues), static, *_routes_that_change(acts)]

    async def on_error(request: Request, error: Exception) -> Response:
        return view.page(request, "error.html", status=404, message=str(error))

    async def on_refusal(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = _REFUSALS.get(status, "This request was not understood.")
        return view.page(request, "error.html", status=status, message=message)

    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guarded, door=door, prefix=prefix, throttle=throttle, now=jet.runtime.clock.monotonic)],
        exception_handlers={PeltonError: on_error, HTTPException: on_refusal},
    )


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
        Route("/flows", pages.flows),
        Route("/schedules", pages.schedules),
        Route("/limits", pages.limits),
    ]


def _routes_that_change(acts: Actions) -> list[Route]:
    return [
        Route("/login", acts.login, methods=["GET", "POST"]),
        Route("/logout", acts.logout, methods=["POST"]),
        Route("/streams/{name}/publish", acts.publish, methods=["GET", "POST"]),
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
        authorization, address = headers.get("authorization", ""), _address_of(request)
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


class DashboardServer:
    """Serves an app on a socket that listens."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        # Viewers of a live page never end their request by themselves.
        self._server = _Server(
            uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )
        self._listener = listener

    async def serve(self) -> None:
        """Serve until :meth:`stop` is called."""
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """End; requests have a second to finish. From any thread."""
        self._server.should_exit = True
