"""What changes something. Each operation is asked about on a page of its own first; a message is written on one."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pelton import observe
from pelton.connect import Jet
from pelton.dashboard.door import VISITOR
from pelton.dashboard.forms import form_of, headers_of
from pelton.dashboard.operations import QUEUE_OPERATIONS, STREAM_OPERATIONS, Operation, plain_stream
from pelton.dashboard.snapshots import Snapshots
from pelton.dashboard.view import View

_MESSAGE_BYTES: Final = 1 << 20
_BY_PLACE: Final = {"queues": QUEUE_OPERATIONS, "streams": STREAM_OPERATIONS}


class Actions:
    """The handlers that change something."""

    def __init__(self, jet: Jet, view: View, snapshots: Snapshots) -> None:
        self._jet = jet
        self._view = view
        self._snapshots = snapshots

    async def ask(self, request: Request) -> Response:
        """Ask whether an operation is meant."""
        place, name, operation = self._checked(request)
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
        place, name, operation = self._checked(request)
        form = await form_of(request)
        if not self._is_own(request, form):
            return self._refused(request)
        await self._check_exists(place, name)
        of_id = form.get("id", "")
        await operation.do(self._jet, name, of_id)
        return self._done(request, _page_of(place, name, operation, of_id), request.path_params["action"])

    def _checked(self, request: Request) -> tuple[str, str, Operation]:
        place, name = request.path_params["place"], request.path_params["name"]
        operation = _BY_PLACE.get(place, {}).get(request.path_params["action"])
        if not self._view.door.actions or operation is None:
            raise HTTPException(404)
        return place, name, operation

    async def _check_exists(self, place: str, name: str) -> None:
        """Raise StreamNotFoundError, ConfigError."""
        await (observe.queue_summary(self._jet, name) if place == "queues" else self._jet.stream(name))

    async def publish(self, request: Request) -> Response:
        """Write a message, and store it."""
        name = request.path_params["name"]
        if not self._view.door.actions:
            raise HTTPException(404)
        stream = await plain_stream(self._jet, name)
        if request.method != "POST":
            first = next(iter(stream.config.subjects), "")
            return self._with_form(request, "publish.html", stream=name, subject="" if set(first) & {*"*>"} else first)
        form = await form_of(request, _MESSAGE_BYTES)
        if not self._is_own(request, form):
            return self._refused(request)
        data, headers = form.get("data", "").encode(), headers_of(form.get("headers", ""))
        await self._jet.publish(form.get("subject", ""), data, headers=headers or None, expected_stream=name)
        return self._done(request, f"/streams/{quote(name, safe='')}", "publish")

    async def login(self, request: Request) -> Response:
        """Take the token, and give a cookie for it."""
        door, root = self._view.door, request.scope.get("root_path", "")
        if door.is_open:
            return RedirectResponse(f"{root}/", 303)
        if request.method != "POST":
            return self._view.page(request, "login.html", is_wrong=False)
        if not door.is_token((await form_of(request)).get("token", "")):
            return self._view.page(request, "login.html", status=403, is_wrong=True)
        answer = RedirectResponse(f"{root}/", 303)
        _set_cookie(answer, request, door.session_cookie, door.session)
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
        return self._view.door.may_act(request.cookies.get(VISITOR, ""), form.get("form_token", ""), site)

    def _refused(self, request: Request) -> Response:
        text = "This form is not of this page, or too old. Go back, reload."
        return self._view.page(request, "error.html", status=403, message=text)

    def _done(self, request: Request, page: str, action: str) -> Response:
        self._snapshots.forget()
        return RedirectResponse(f"{request.scope.get('root_path', '')}{page}?done={action}", 303)


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
