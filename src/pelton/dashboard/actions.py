"""What a viewer can do. Each action is asked about on a page of its own first."""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pelton import observe
from pelton.api import JobNotFoundError
from pelton.connect import Jet
from pelton.dashboard.door import VISITOR
from pelton.dashboard.snapshots import Snapshots
from pelton.dashboard.view import View

_QUESTIONS: Final = {
    "redrive": "Put this failed job into the queue again?",
    "redrive-all": "Put failed jobs into the queue again, at most 1000 of them?",
    "cancel": "Cancel this job?",
    "pause": "Start no more jobs of this queue, in any process?",
    "resume": "Start jobs of this queue again?",
}
_OF_A_JOB: Final = ("redrive", "cancel")
_MOST: Final = 1000
_FORM_BYTES: Final = 8192


class Actions:
    """The handlers that change something."""

    def __init__(self, jet: Jet, view: View, snapshots: Snapshots) -> None:
        self._jet = jet
        self._view = view
        self._snapshots = snapshots

    async def ask(self, request: Request) -> Response:
        """Ask whether an action is meant."""
        name, action = self._checked(request)
        await observe.queue_summary(self._jet, name)
        visitor = request.cookies.get(VISITOR) or os.urandom(16).hex()
        answer = self._view.page(
            request,
            "ask.html",
            queue=name,
            action=action,
            question=_QUESTIONS[action],
            job_id=request.query_params.get("id", ""),
            form_token=self._view.door.form_token(visitor),
        )
        _set_cookie(answer, request, VISITOR, visitor)
        return answer

    async def act(self, request: Request) -> Response:
        """Do what was asked about."""
        name, action = self._checked(request)
        form = await _form(request)
        site = request.headers.get("sec-fetch-site", "")
        if not self._view.door.may_act(request.cookies.get(VISITOR, ""), form.get("form_token", ""), site):
            return self._view.page(
                request, "error.html", status=403, message="This form is not of this page, or too old. Go back, reload."
            )
        await observe.queue_summary(self._jet, name)
        await self._do(name, action, form.get("id", ""))
        self._snapshots.forget()
        return RedirectResponse(f"{request.scope.get('root_path', '')}/queues/{name}?done={action}", 303)

    def _checked(self, request: Request) -> tuple[str, str]:
        name, action = request.path_params["name"], request.path_params["action"]
        if not self._view.door.actions or action not in _QUESTIONS:
            raise HTTPException(404)
        return name, action

    async def _do(self, name: str, action: str, job_id: str) -> None:
        queue = await self._jet.queue(name)
        if action == "pause":
            await queue.pause()
        elif action == "resume":
            await queue.resume()
        elif action == "cancel":
            await queue.cancel(job_id, reason="on the dashboard")
        elif action == "redrive":
            await queue.redrive(job_id)
        else:
            for each in await self._failed(name):
                try:
                    await queue.redrive(each)
                except JobNotFoundError:
                    # Somebody else was faster.
                    continue

    async def _failed(self, name: str) -> list[str]:
        found: list[str] = []
        async with aclosing(observe.dead_letters(self._jet, name)) as letters:
            async for letter in letters:
                found.append(letter.outcome.id)
                if len(found) == _MOST:
                    break
        return found

    async def login(self, request: Request) -> Response:
        """Take the token, and give a cookie for it."""
        door, root = self._view.door, request.scope.get("root_path", "")
        if door.is_open:
            return RedirectResponse(f"{root}/", 303)
        if request.method != "POST":
            return self._view.page(request, "login.html", is_wrong=False)
        if not door.is_token((await _form(request)).get("token", "")):
            return self._view.page(request, "login.html", status=403, is_wrong=True)
        answer = RedirectResponse(f"{root}/", 303)
        _set_cookie(answer, request, door.session_cookie, door.session)
        return answer


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a small form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES:
            raise HTTPException(413)
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    return {name: values[-1] for name, values in fields.items()}


def _set_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    where = request.scope.get("root_path", "") or "/"
    is_secure = request.url.scheme == "https"
    answer.set_cookie(name, value, path=where, httponly=True, samesite="strict", secure=is_secure)
