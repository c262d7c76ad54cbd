"""From values to pages: numbers, sizes, times and payloads as texts. Jinja escapes everything that it is given."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pelton.api.times import SECOND, parse_rfc3339
from pelton.api.wording import age_text, bytes_text, moment_text, number_text, span_text, visible_text
from pelton.dashboard.access import DashboardDoor, Viewer
from pelton.dashboard.actions import done_text

# --- what a payload looks like to a person: JSON, text, or bytes in hexadecimal. Pure

SHOWN: Final = 16_384
"""How many bytes of a payload are shown."""
_LINE: Final = 16
_BINARY: Final = 0.1
"""Beyond which part of controls, lines and tabs aside, a payload is no text."""
_controls: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Shown(NamedTuple):
    """A payload as text, and whether all of it is there."""

    kind: Literal["JSON", "text", "hex"]
    text: str
    is_whole: bool


def payload_for_person(data: bytes, limit: int = SHOWN) -> Shown:
    """Return a payload for a person: one that is cut is never JSON, and hex shows at most a quarter of ``limit``."""
    is_whole = len(data) <= limit
    text = _text(data[:limit], is_whole)
    if text is None:
        part = data[: limit // 4]
        return Shown("hex", _hex(part), len(part) == len(data))
    if is_whole and text[:1] in ("{", "["):
        try:
            whole = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            return Shown("JSON", visible_text(whole, keep_lines=True), True)
        except (ValueError, RecursionError):
            pass
    return Shown("text", visible_text(text, keep_lines=True), is_whole)


def _text(data: bytes, is_whole: bool) -> str | None:
    """Return bytes as text, with plain line breaks; None if they are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end.
        if is_whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    text = text.replace("\r\n", "\n")
    return text if len(_controls.findall(text)) <= _BINARY * len(text) else None


def _hex(data: bytes) -> str:
    lines = []
    for begin in range(0, len(data), _LINE):
        part = data[begin : begin + _LINE]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<{_LINE * 3 - 1}}  {seen}")
    return "\n".join(lines)


# --- from values to pages. Jinja escapes everything that it is given

_HERE: Final = Path(__file__).parent
_TEMPLATES: Final = _HERE / "templates"
_STYLE: Final = (_HERE / "style.css").read_text()
_SCRIPT: Final = (_HERE / "static" / "live.js").read_bytes()
# In the page itself, so that the browser can paint as soon as it has the page; the policy names its digest.
STYLE_SOURCE: Final = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"


def since_text(time: str | int, now: int) -> str:
    """Return how long ago a time was: RFC 3339 text, or wall nanoseconds; a dash for none."""
    return f"{age} ago" if (age := age_text(time, now)) else "-"


def until_text(time: str | int, now: int) -> str:
    """Return in how long a time will be: RFC 3339 text, or wall nanoseconds; ``now`` for one that is over."""
    left = (time if isinstance(time, int) else parse_rfc3339(time)) - now
    return f"in {span_text(-(-left // SECOND))}" if left > 0 else "now"


@cache
def _pages() -> Environment:
    """Return the templates, compiled: the first viewer does not wait for that."""
    pages = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        # Whatever is shown: keys, subjects and errors come from others. What is markup already is left as it is.
        finalize=lambda value: visible_text(value, keep_lines=True) if type(value) is str else value,
    )
    pages.filters.update(
        number=number_text,
        bytes=bytes_text,
        span=span_text,
        since=since_text,
        until=until_text,
        moment=lambda time: moment_text(time) or "-",
        payload=payload_for_person,
        raw_bytes=bytes,
    )
    # A browser keeps the script for as long as its address stays the same.
    pages.globals.update(style=Markup(_STYLE), script_version=hashlib.sha256(_SCRIPT).hexdigest()[:16])
    for name in pages.list_templates():
        pages.get_template(name)
    return pages


class View:
    """Renders the pages of one dashboard."""

    def __init__(
        self,
        door: DashboardDoor,
        store: str,
        health: Callable[[], Awaitable[Mapping[str, object]]],
        stores: Collection[str] = (),
    ) -> None:
        self.door = door
        self._store = store
        self._health = health
        self._stores = stores
        self._pages = _pages()

    async def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page; its header says how the store is, to viewers who may look."""
        viewer = viewer_of(request)
        given = {
            "base": request.scope.get("root_path", ""),
            "path": request.url.path.removeprefix(request.scope.get("root_path", "")),
            "viewer": viewer,
            "actions": viewer.may("act"),
            "administers": viewer.may("administer"),
            "store": self._store,
            "stores": self._stores,
            "health": await self._health() if _VIEWER in request.scope else {},
            "live": {},
            "done": done_text(request.query_params),
            **values,
        }
        return HTMLResponse(self._pages.get_template(template).render(given), status)


_VIEWER: Final = "pelton.viewer"
_NOBODY: Final = Viewer("", "look")


def set_viewer(request: Request, viewer: Viewer) -> None:
    """Remember who sent a request."""
    request.scope[_VIEWER] = viewer


def viewer_of(request: Request) -> Viewer:
    """Return who sent a request; one who has no name and may look, before the login."""
    viewer: Viewer = request.scope.get(_VIEWER, _NOBODY)
    return viewer
