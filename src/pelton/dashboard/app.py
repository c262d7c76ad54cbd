"""The dashboard as an ASGI app: its routes, and what every request and answer goes through."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pelton.api import ConfigError, PeltonError
from pelton.connect import Jet
from pelton.dashboard.actions import Actions
from pelton.dashboard.door import DashboardDoor
from pelton.dashboard.pages import Pages
from pelton.dashboard.queue_pages import QueuePages
from pelton.dashboard.snapshots import Snapshots
from pelton.dashboard.view import STYLE_SOURCE, View

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
_KEPT: Final = "public, max-age=31536000, immutable"
"""For files whose address has their version."""


def app(
    jet: Jet,
    *,
    prefix: str = "",
    token: str = "",
    actions: bool | None = None,
    hosts: Collection[str] = (),
    path: str = "",
    every: float = 2.0,
) -> ASGIApp:
    """Return the dashboard of an open store or cluster, which stays the caller's.

    ``prefix``: where it is mounted, such as ``/ops``. ``token``: who does not give it sees nothing; empty: everybody
    who can reach the page may look. ``actions``: whether viewers can cancel, redrive, pause, purge and publish; None:
    only with a token. A store opened with ``read_only=True`` has no actions. ``hosts``: the names that requests may
    come for; empty: any. ``path``: the file of the store, for its metrics. ``every``: seconds between two looks at the
    store, while somebody watches. Raises ConfigError.
    """
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigError(f"dashboard: prefix is {prefix!r}; write it as '/ops'")
    may_act = (bool(token) if actions is None else actions) and not jet.backend.planning.read_only
    door = DashboardDoor(os.urandom(32), token=token, actions=may_act, hosts=frozenset(name.lower() for name in hosts))
    view = View(door)
    snapshots = Snapshots(jet, every)
    pages, queues, acts = (
        Pages(jet, view, snapshots, path),
        QueuePages(jet, view, snapshots),
        Actions(jet, view, snapshots),
    )
    static = Mount("/static", StaticFiles(directory=_HERE / "static"))
    routes = [*_shown(pages), *_shown_of_queues(queues), static, *_changed(acts)]

    async def failed(request: Request, error: Exception) -> Response:
        return view.page(request, "error.html", status=404, message=str(error))

    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guarded, door=door, prefix=prefix)],
        exception_handlers={PeltonError: failed},
    )


def _shown(pages: Pages) -> list[Route]:
    return [
        Route("/", pages.overview, name="overview"),
        Route("/streams/{name}", pages.stream),
        Route("/streams/{name}/messages/{seq:int}", pages.message),
        Route("/consumers", pages.consumers),
        Route("/buckets", pages.buckets),
        Route("/locks", pages.locks),
        Route("/elections", pages.elections),
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


def _changed(acts: Actions) -> list[Route]:
    return [
        Route("/login", acts.login, methods=["GET", "POST"]),
        Route("/streams/{name}/publish", acts.publish, methods=["GET", "POST"]),
        Route("/{place:str}/{name}/{action}", acts.ask, methods=["GET"]),
        Route("/{place:str}/{name}/{action}", acts.act, methods=["POST"]),
    ]


class _Guarded:
    """Refuses who may not look, and adds the headers that bind a browser."""

    def __init__(self, app: ASGIApp, door: DashboardDoor, prefix: str) -> None:
        self._app = app
        self._door = door
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = self._mounted(scope)
        refusal, is_static = self._refusal(Request(scope)), _asked(scope).startswith("/static/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if is_static and message["status"] == 200:
                    headers["cache-control"] = _KEPT
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _mounted(self, scope: Scope) -> Scope:
        """Tell the routes where the app is mounted, if whoever calls it, such as Django's dispatch, does not."""
        root, prefix = scope.get("root_path", ""), self._prefix
        if not prefix or root.endswith(prefix) or not f"{scope['path']}/".startswith(f"{root}{prefix}/"):
            return scope
        return {**scope, "root_path": root + prefix}

    def _refusal(self, request: Request) -> Response | None:
        headers: Headers = request.headers
        if not self._door.knows_host(headers.get("host", "")):
            return PlainTextResponse("This page does not answer to that name of a host.\n", 421)
        if self._door.admits(headers.get("authorization", ""), request.cookies):
            return None
        root, asked = request.scope.get("root_path", ""), _asked(request.scope)
        if asked == "/login" or asked.startswith("/static/"):
            return None
        if request.method == "GET" and "text/html" in headers.get("accept", ""):
            return RedirectResponse(f"{root}/login", 303)
        return PlainTextResponse("Give the token.\n", 401, {"www-authenticate": "Bearer"})


def _asked(scope: Scope) -> str:
    return str(scope["path"].removeprefix(scope.get("root_path", "")))
