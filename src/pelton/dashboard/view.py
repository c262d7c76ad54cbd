"""From values to pages. Jinja escapes everything that it is given."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pelton.dashboard.door import DashboardDoor
from pelton.dashboard.operations import DONE
from pelton.dashboard.payload import shown
from pelton.dashboard.texts import bytes_text, moment_of, number_text, since_text, span_text

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
        payload=shown,
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
