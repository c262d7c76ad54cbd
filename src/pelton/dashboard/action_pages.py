"""What changes something: each operation is asked about on a page of its own first, and needs a form of that page."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pelton import observe
from pelton.api import ConfigError, PeltonError
from pelton.api.wording import text_for_people
from pelton.connect import Jet
from pelton.dashboard.access import VISITOR, LoginThrottle, Role
from pelton.dashboard.actions import (
    OTHER_COMMANDS,
    QUEUE_OPERATIONS,
    STREAM_OPERATIONS,
    Matches,
    Operation,
    do_many,
    plain_stream,
    selection_of,
)
from pelton.dashboard.pictures import Snapshots
from pelton.dashboard.view import View, viewer_of
from pelton.observe.queues import queue_looked_at
from pelton.queue import Queue, Rate

_FORM_BYTES: Final = 65_536
_MOST_FIELDS: Final = 250


async def fields_of(request: Request, limit: int = _FORM_BYTES) -> dict[str, list[str]]:
    """Return the fields of a form of at most ``limit`` bytes, each with its values. Raises HTTPException."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise HTTPException(413)
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HTTPException(400) from None


async def form_of(request: Request, limit: int = _FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form, each with its last value. Raises HTTPException."""
    return {name: values[-1] for name, values in (await fields_of(request, limit)).items()}


def headers_of(text: str) -> dict[str, str]:
    """Return headers from lines such as ``Name: value``; lines without a colon are left out."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


_MOST_TENANTS: Final = 100
_LIMIT_FIELDS: Final = ("concurrency", "starts", "per", "burst", "per_key", "weight")
_MESSAGE_BYTES: Final = 1 << 20
_WHOLE: Final = observe.JobSelection()
LISTS: Final = ("/jobs", "/dead")
"""The pages from which an operation may come, and to which it goes back."""
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
        asked = request.query_params
        return await self._ask(request, asked.getlist("id"), asked)

    async def _ask(self, request: Request, ids: Sequence[str], asked: Mapping[str, str], problem: str = "") -> Response:
        place, name, operation = self._operation_of(request)
        await self._check_exists(place, name)
        matches, wanted = await self._matches(operation, name, asked)
        number = len(ids if matches is None else matches.ids)
        if operation.of and not number:
            return await self._view.page(request, "error.html", status=400, message="There is nothing to do it with.")
        is_all = matches is not None and wanted == _WHOLE
        return await self._with_form(
            request,
            "ask.html",
            status=400 if problem else 200,
            place=place,
            name=name,
            action=request.path_params["action"],
            operation=operation,
            ids=() if matches is not None else ids,
            number=number,
            is_more=matches is not None and not matches.is_whole,
            wanted=wanted if matches is not None else None,
            total=await operation.size(self._jet, name) if operation.size else "",
            must_type=operation.is_dangerous and (operation.must_type or is_all),
            problem=problem,
            back=_page_of(place, name, operation, ids, asked),
        )

    async def _matches(
        self, operation: Operation, name: str, asked: Mapping[str, str]
    ) -> tuple[Matches | None, observe.JobSelection]:
        wanted = selection_of(asked, self._jet.runtime.clock.now())
        if operation.find is None or not asked.get("all"):
            return None, wanted
        return await operation.find(self._jet, name, wanted), wanted

    async def act(self, request: Request) -> Response:
        """Do what was asked about."""
        place, name, operation = self._operation_of(request)
        fields = await fields_of(request)
        form = {field: values[-1] for field, values in fields.items()}
        if not self._is_own(request, form):
            return await self._refuse(request)
        await self._check_exists(place, name)
        ids, action = fields.get("id", [""]), request.path_params["action"]
        matches, wanted = await self._matches(operation, name, form)
        must_type = operation.is_dangerous and (operation.must_type or (matches is not None and wanted == _WHOLE))
        if must_type and form.get("typed", "") != name:
            return await self._ask(request, ids, form, "Type the name as it is written here.")
        page = _page_of(place, name, operation, ids, form)
        if matches is not None or len(ids) > 1:
            chosen = ids if matches is None else matches.ids
            done, left = await do_many(self._jet, operation, name, chosen)
            result = operation.done_many.format(f"{done:,}")
            target = f"{name} --all" if matches is not None else f"{name} {' '.join(ids)}"[:500]
            await self._record(request, operation.command, target, result)
            is_more = left or (matches is not None and not matches.is_whole)
            return self._redirect_after(request, page, action, f"&n={done}&left={int(bool(is_more))}")
        doing = operation.do(self._jet, name, ids[0])
        await self._do_recorded(request, operation.command, f"{name} {ids[0]}".strip(), doing, operation.done)
        return self._redirect_after(request, page, action)

    def _operation_of(self, request: Request) -> tuple[str, str, Operation]:
        place, name = request.path_params["place"], request.path_params["name"]
        operation = _BY_PLACE.get(place, {}).get(request.path_params["action"])
        if operation is None:
            raise HTTPException(404)
        _check_role(request, operation.role)
        return place, name, operation

    async def _do_recorded(
        self, request: Request, action: str, target: str, doing: Awaitable[object], result: str = ""
    ) -> None:
        """Do something, and write to the audit what came of it, and how many if it tells."""
        try:
            count = await doing
        except PeltonError as error:
            await self._record(request, action, target, error=text_for_people(error))
            raise
        await self._record(request, action, target, f"{result} ({count:,})" if isinstance(count, int) else result)

    async def _record(self, request: Request, action: str, target: str, result: str = "", *, error: str = "") -> None:
        entry = observe.AuditEntry(
            who=viewer_of(request).name,
            source="page",
            origin=address_of(request),
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
            return await self._with_form(
                request, "publish.html", stream=name, subject="" if set(first) & {*"*>"} else first
            )
        form = await form_of(request, _MESSAGE_BYTES)
        if not self._is_own(request, form):
            return await self._refuse(request)
        # Browsers end each line of a form with CRLF, which nobody has typed.
        data, headers = form.get("data", "").replace("\r\n", "\n").encode(), headers_of(form.get("headers", ""))
        subject = form.get("subject", "")
        publishing = self._jet.publish(subject, data, headers=headers or None, expected_stream=name)
        await self._do_recorded(request, OTHER_COMMANDS["publish"], f"{name} {subject}", publishing)
        return self._redirect_after(request, f"/streams/{quote(name, safe='')}", "publish")

    async def send_signal(self, request: Request) -> Response:
        """Ask for a signal and its value, and send it to a job, once."""
        name, job_id = request.path_params["name"], request.path_params["job_id"]
        _check_role(request, "act")
        queue = await self._jet.queue(name, create=False)
        form = await form_of(request, _MESSAGE_BYTES) if request.method == "POST" else dict(request.query_params)
        shown: dict[str, Any] = {"queue": name, "job_id": job_id, "signal": form.get("signal", "")}
        if request.method != "POST":
            await queue.get(job_id)
            return await self._with_form(
                request, "signal.html", **shown, value="", once=os.urandom(16).hex(), problem=""
            )
        if not self._is_own(request, form):
            return await self._refuse(request)
        text, once = form.get("value", ""), form.get("once", "")
        try:
            value = msgspec.json.decode(text) if text.strip() else None
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"This is not JSON: {error}"
            return await self._with_form(
                request, "signal.html", status=400, **shown, value=text, once=once, problem=problem
            )

        async def send() -> None:
            await queue.send(job_id, shown["signal"], value, msg_id=once)

        target = f"{name} {job_id} {shown['signal']}"
        await self._do_recorded(request, OTHER_COMMANDS["signal"], target[:500], send(), "The signal is sent.")
        return self._redirect_after(request, f"/queues/{quote(name, safe='')}/jobs/{quote(job_id, safe='')}", "signal")

    async def set_limits(self, request: Request) -> Response:
        """Show the limits and weights of a queue as forms; or set one, or take a limit away."""
        name = request.path_params["name"]
        _check_role(request, "administer")
        page = f"/queues/{quote(name, safe='')}/limits"
        if request.method != "POST":
            queue = await queue_looked_at(self._jet, name)
            limits, weights = await queue.limits(), await queue.weights()
            tenants = {one.tenant: one.weight for one in await observe.tenant_counts(self._jet, name, _MOST_TENANTS)}
            return await self._with_form(
                request, "queue_limits.html", queue=name, limits=limits, weights=tenants | weights
            )
        form = await form_of(request)
        if not self._is_own(request, form):
            return await self._refuse(request)
        action = next((each for each in ("limit", "unlimit", "weigh") if each in form), "limit")
        target = f"{name} {form.get('tenant' if action == 'weigh' else 'job', '')}".strip()
        result = ", ".join(f"{field}: {text}" for field, text in form.items() if field in _LIMIT_FIELDS and text)
        doing = _set_limits(await self._jet.queue(name, create=False), action, form)
        await self._do_recorded(request, OTHER_COMMANDS[action], target, doing, result[:500])
        return self._redirect_after(request, page, action)

    async def login(self, request: Request) -> Response:
        """Take a token, and give a cookie for it; lead to the page that was asked for."""
        door, root = self._view.door, request.scope.get("root_path", "")
        form = await form_of(request) if request.method == "POST" else dict(request.query_params)
        page = root + _own_page(form.get("next", ""))
        if door.is_open:
            return RedirectResponse(f"{root}/", 303)
        address, now = address_of(request), self._jet.runtime.clock.monotonic()
        if request.method != "POST":
            return await self._view.page(request, "login.html", next=form.get("next", ""), wrong="")
        status, wrong, session = 429, "Too many tokens were wrong. Wait a minute, then try again.", None
        if not self._throttle.is_full(address, now) and (session := door.session_of(form.get("token", ""))) is None:
            self._throttle.note_wrong(address, now)
            status, wrong = 403, "That is not the token."
        if session is None:
            return await self._view.page(request, "login.html", status=status, next=form.get("next", ""), wrong=wrong)
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

    async def _with_form(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page with a form that its visitor alone can send."""
        visitor = request.cookies.get(VISITOR) or os.urandom(16).hex()
        token = self._view.door.form_token(visitor)
        answer = await self._view.page(request, template, status=status, form_token=token, **values)
        _set_cookie(answer, request, VISITOR, visitor)
        return answer

    def _is_own(self, request: Request, form: dict[str, str]) -> bool:
        site = request.headers.get("sec-fetch-site", "")
        return self._view.door.is_own_form(request.cookies.get(VISITOR, ""), form.get("form_token", ""), site)

    async def _refuse(self, request: Request) -> Response:
        text = "This form is not of this page, or too old. Go back, reload."
        return await self._view.page(request, "error.html", status=403, message=text)

    def _redirect_after(self, request: Request, page: str, action: str, more: str = "") -> Response:
        self._snapshots.forget()
        sign = "&" if "?" in page else "?"
        return RedirectResponse(f"{request.scope.get('root_path', '')}{page}{sign}done={action}{more}", 303)


def _check_role(request: Request, role: Role) -> None:
    """Raise HTTPException: 404 where nobody can act, 403 for who may not."""
    viewer = viewer_of(request)
    if not viewer.may(role):
        raise HTTPException(403 if viewer.may("act") else 404)


async def _set_limits(queue: Queue, action: str, form: Mapping[str, str]) -> None:
    """Do what a form says. Raises ConfigError."""
    if action == "weigh":
        await queue.weigh(form.get("tenant", ""), _whole(form, "weight") or 0)
        return
    job, per_key = form.get("job", "").strip() or None, bool(form.get("per_key"))
    if action == "unlimit":
        await queue.unlimit(job=job, per_key=per_key)
        return
    starts = _whole(form, "starts")
    rate = None if starts is None else Rate(starts, per=_whole(form, "per") or 1, burst=_whole(form, "burst") or 1)
    await queue.limit(job=job, per_key=per_key, concurrency=_whole(form, "concurrency"), rate=rate)


def _whole(form: Mapping[str, str], field: str) -> int | None:
    """Return a whole number from a form; None for an empty field. Raises ConfigError."""
    if not (text := form.get(field, "").strip()):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{field} is {text[:40]!r}; it must be a whole number")
    return int(text)


def address_of(request: Request) -> str:
    """Return where a request came from; empty if that is not known."""
    return request.client.host if request.client else ""


def _own_page(asked: str) -> str:
    """Return a page of this dashboard that was asked for; the overview for anything else, such as another site."""
    return asked if asked.startswith("/") and not asked.startswith(("//", "/\\")) and asked.isprintable() else "/"


def _page_of(place: str, name: str, operation: Operation, ids: Sequence[str], asked: Mapping[str, str]) -> str:
    """Return the page that shows what an operation is about."""
    if operation.of == "schedule":
        return "/schedules"
    if (path := asked.get("from", "")) in LISTS:
        return f"{path}?queue={quote(name, safe='')}"
    page = f"/{place}/{quote(name, safe='')}"
    return f"{page}/flows/{quote(ids[0], safe='')}" if operation.of == "flow" and ids else page


def _set_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    where = request.scope.get("root_path", "") or "/"
    is_secure = request.url.scheme == "https"
    answer.set_cookie(name, value, path=where, httponly=True, samesite="strict", secure=is_secure)
