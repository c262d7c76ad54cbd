"""From values to pages: numbers, sizes, times and payloads as texts. Jinja escapes everything that it is given."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pelton.api import rfc3339
from pelton.api.times import SECOND, parse_rfc3339
from pelton.dashboard.actions import DONE, DashboardDoor

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LONG: Final = (("d", 86_400), ("h", 3600), ("min", 60))


def number_text(value: float) -> str:
    """Return a number with separators, and what is no whole number with three digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def bytes_text(size: float) -> str:
    """Return a number of bytes."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"


def span_text(seconds: float) -> str:
    """Return a duration."""
    for unit, length in _LONG:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else f"{seconds:.3g} s"


def since_text(time: str | int, now: int) -> str:
    """Return how long ago a time was: RFC 3339 text, or wall nanoseconds; a dash for none."""
    if not time:
        return "-"
    at = time if isinstance(time, int) else parse_rfc3339(time)
    return f"{span_text(float(max(now - at, 0) // SECOND))} ago"


def moment_of(time: str | int) -> str:
    """Return a time as ``2026-01-31 12:00:00`` in UTC; a dash for none."""
    if not time:
        return "-"
    return (time if isinstance(time, str) else rfc3339(time))[:19].replace("T", " ")


# --- what a payload looks like to a person: JSON, text, or bytes in hexadecimal. Pure

SHOWN: Final = 16_384
"""How many bytes of a payload are shown."""
_LINE: Final = 16
_ALLOWED: Final = "\n\t"


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
            return Shown("JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False), True)
        except (ValueError, RecursionError):
            pass
    return Shown("text", text, is_whole)


def _text(data: bytes, is_whole: bool) -> str | None:
    """Return bytes as text that can be printed; None if they are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end.
        if is_whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return text if all(char.isprintable() or char in _ALLOWED for char in text) else None


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
    )
    pages.filters.update(
        number=number_text,
        bytes=bytes_text,
        span=span_text,
        since=since_text,
        moment=moment_of,
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

    def __init__(self, door: DashboardDoor) -> None:
        self.door = door
        self._pages = _pages()

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page."""
        given = {
            "base": request.scope.get("root_path", ""),
            "path": request.url.path.removeprefix(request.scope.get("root_path", "")),
            "actions": self.door.actions,
            "live": {},
            "done": DONE.get(request.query_params.get("done", ""), ""),
            **values,
        }
        return HTMLResponse(self._pages.get_template(template).render(given), status)
