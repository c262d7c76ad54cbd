"""Dashboards of several stores behind one address, and behind a proxy: which of them a request is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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
